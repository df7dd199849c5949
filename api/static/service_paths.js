// Paths of the service, which a proxy may serve below a prefix.

const ROOT = new URL("..", import.meta.url).pathname;

/** @param path of the API or a page, such as `/tasks`; answers of the API contain the prefix already */
export const servicePath = (path) => ROOT + path.slice(1);
