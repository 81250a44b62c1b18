// Talking to the server: JSON, and server-sent events that answer a POST (EventSource can only GET).

const tokenKey = "anytime-token";

function headers() {
  const token = sessionStorage.getItem(tokenKey);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function askForToken() {
  const dialog = document.getElementById("token-dialog");
  const input = document.getElementById("token");
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(tokenKey, input.value.trim());
      input.value = "";
      resolve();
    }, { once: true });
    dialog.showModal();
  });
}

// A response with status 200; asks for the token if the server wants one.
export async function ask(path, options = {}) {
  let response = await fetch(path, { ...options, headers: headers() });
  while (response.status === 401) {
    await askForToken();
    response = await fetch(path, { ...options, headers: headers() });
  }
  if (!response.ok) {
    const body = await response.text();
    let reason = body;
    try { reason = JSON.parse(body).error; } catch { /* plain text */ }
    throw new Error(reason || `status ${response.status}`);
  }
  return response;
}

// Yields {name, data} for each event.
export async function* events(path, options) {
  const response = await ask(path, { method: "POST", ...options });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      yield { name: field("event"), data: JSON.parse(field("data")) };
    }
  }
}
