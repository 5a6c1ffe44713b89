// What is asked of the router. The page knows nothing but what comes from here.

/** An answer that is an error, or none at all (status 0). */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const STORED = 'prefix-router-admin-token';
/** No round takes longer. */
const PATIENCE = 5000;

export function setToken(token) {
  sessionStorage.setItem(STORED, token);
}

/** The JSON that comes back; throws an ApiError otherwise. */
export async function ask(method, path, body, headers = {}) {
  const token = sessionStorage.getItem(STORED);
  const authorization = token ? { authorization: `Bearer ${token}` } : {};
  let response, text;
  try {
    // Relative to /ui: a proxy may have put the router below a path.
    response = await fetch(`api/v1/${path}`, {
      method, body, cache: 'no-store', headers: { ...authorization, ...headers }, signal: AbortSignal.timeout(PATIENCE),
    });
    text = await response.text();
  } catch (error) {
    throw new ApiError(0, error.name === 'TimeoutError' ? `no answer within ${PATIENCE / 1000} s` : 'it cannot be reached');
  }
  let json;
  try {
    json = JSON.parse(text);
  } catch {
    throw new ApiError(0, `what answers is no prefix-router (status ${response.status})`);
  }
  if (!response.ok) throw new ApiError(response.status, json.error?.message ?? `status ${response.status}`);
  return json;
}

/** A name as a part of a path. */
export const part = encodeURIComponent;
