// States of a task.

const FINAL_STATES = ["ready", "failed", "cancelled"];

export const isFinal = (task) => FINAL_STATES.includes(task.state);

/** Whether a task is learned and has videos that are not deleted. */
export const isSearchable = (task) => task.state === "ready" && !task.into && task.counts.accepted > 0;
