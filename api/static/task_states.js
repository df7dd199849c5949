// States of a task.

const FINAL_STATES = ["ready", "failed", "cancelled"];

export const isFinal = (task) => FINAL_STATES.includes(task.state);

/** Whether a task is a learned domain with videos. */
export const isSearchable = (task) => task.state === "ready" && !task.into && task.counts.accepted > 0;
