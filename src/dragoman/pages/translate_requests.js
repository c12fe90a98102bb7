"use strict";
// Requests to the server; what can go wrong with them, in words for the reader.

// text: a node with the message in both languages.  again: whether the same request may succeed later.
class Failure extends Error {
  constructor(text, again = false) {
    super(text.textContent);
    this.text = text;
    this.again = again;
  }
}

const FIRST_PART = /^(Invalid request|Cannot translate text|Slowdown): /;
const megabytes = (bytes) => `${significant(bytes / 1e6, 2)} MB`;
const unreachable = () => new Failure(both("The server does not answer. Is it still running?", "服务器没有响应。它还在运行吗？"), true);

function failureOf({ status, body }) {
  const message = String(body?.error ?? `status ${status}`).replace(FIRST_PART, "");
  const quoted = () => el("span", { lang: "en-US" }, message);  // not "en", which the style sheet hides in Chinese
  if (status === 413) return new Failure(both("This is too large for the server.", "内容超过了服务器的大小限制。"));
  if (status === 408) return new Failure(both("The upload took too long. Try again, or send less at a time.", "上传超时。请重试，或减少每次发送的内容。"), true);
  if (status === 503) return new Failure(both("The translation took longer than the server allows. Translate less at a time.", "翻译超过了服务器的时间限制。请分段翻译。"), true);
  if (status >= 500) return new Failure(both(["The server could not translate this: ", quoted()], ["服务器翻译失败：", quoted()]), true);
  return new Failure(both(["The server refused the request: ", quoted()], ["服务器拒绝了请求：", quoted()]));
}

function pause(milliseconds, signal) {
  return new Promise((done, failed) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); failed(signal.reason); }, { once: true });
  });
}

const busyFor = (seconds) => both(`The server is busy. Trying again in ${seconds} s.`, `服务器正忙，${seconds} 秒后自动重试。`);

// Sends until the server is not overloaded.  send: returns {status, retryAfter, body}.  waits: called with a node while
// the page waits, and with null afterwards.
async function untilAccepted(send, signal, waits) {
  for (;;) {
    const answer = await send();
    if (answer.status !== 429) {
      if (answer.status !== 200) throw failureOf(answer);
      return answer.body;
    }
    for (let left = Math.max(1, Math.ceil(Number(answer.retryAfter) || 1)); left > 0; left--) {
      waits(busyFor(left));
      await pause(1000, signal);
    }
    waits(null);
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function answerOf(response) {
  return { status: response.status, retryAfter: response.headers.get("retry-after"), body: parsed(await response.text()) };
}

// The parameter for a server that checks keys.
const credentials = () => (byId("key").value ? { api_key: byId("key").value } : {});

// The answer to a request with JSON.  Throws Failure, or the reason of `signal` if it was aborted.  grown: if given, the
// server sends the translation sentence by sentence; called with its beginning so far.
function post(path, values, signal, waits, grown) {
  const send = async () => {
    try {
      const body = JSON.stringify({ ...values, ...credentials(), ...(grown ? { stream: true } : {}) });
      const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body, signal });
      const inEvents = response.headers.get("content-type")?.startsWith("text/event-stream");
      return await (inEvents ? lastEvent(response, grown) : answerOf(response));
    } catch (error) {
      throw signal.aborted ? error : unreachable();
    }
  };
  return untilAccepted(send, signal, waits);
}

// Reads server-sent events: the event "done" is the answer, and "error" has its status.
async function lastEvent(response, grown) {
  let text = "";
  for await (const block of partsOf(response, "\n\n")) {
    const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(block) ?? [];  // a comment has no name
    const body = name && JSON.parse(data);
    if (name === "part") grown(text += body.text);
    else if (name) return { status: body.status ?? 200, body };
  }
  throw new Error("the answer is not complete");
}

// The same for a form with a file, because `fetch` does not report progress.  progress: 0 to 1.
function upload(path, form, signal, waits, progress) {
  const send = () => new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(total ? loaded / total : 0));
    request.upload.addEventListener("load", () => progress(1));
    request.addEventListener("load", () => done({ status: request.status, retryAfter: request.getResponseHeader("retry-after"), body: parsed(request.responseText) }));
    request.addEventListener("error", () => failed(unreachable()));
    signal.addEventListener("abort", () => { request.abort(); failed(signal.reason); }, { once: true });
    for (const [name, value] of Object.entries(credentials())) form.set(name, value);
    request.send(form);
  });
  return untilAccepted(send, signal, waits);
}
