// The role of the signed-in user or key; the server checks it again with every request.

const SCOPES = ["search", "ingest", "admin"]; // each includes the previous ones

const granted = SCOPES.indexOf(document.body.dataset.scope);

/** Whether the role permits requests that need a scope. */
export const isPermitted = (scope) => granted >= SCOPES.indexOf(scope);
