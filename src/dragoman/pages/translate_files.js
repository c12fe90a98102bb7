"use strict";
// Documents: dropped or chosen, sent one after the other, and offered for download.

const files = { waiting: [], busy: false };
const FORM_BYTES = 2048;  // of the form around a file
const mostBytes = () => Number(document.body.dataset.mostBytes) - FORM_BYTES;

function showFileDirection() {
  byId("direction").replaceChildren(both(...["en", "zh"].map((reader) => directionIn(reader, chosenSource(), chosenTarget()))));
}

function showFormats() {
  const list = here.suffixes.map((suffix) => suffix.replace(".", "")).join(", ");
  byId("file").accept = here.suffixes.join(",");
  byId("formats").replaceChildren(both(`Formatting is kept. Up to ${megabytes(mostBytes())}: ${list}`, `保留原有格式。每个文件不超过 ${megabytes(mostBytes())}：${list}`));
}

function splitName(name) {
  const dot = name.lastIndexOf(".");
  return dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
}

// What is wrong with a file before it is sent, or null.
function problemOf(file) {
  const suffix = splitName(file.name)[1].toLowerCase();
  if (!here.suffixes.includes(suffix)) return both(`Files of the type “${suffix || file.name}” are not supported. Supported types are listed below.`, `不支持“${suffix || file.name}”文件，支持的格式见下方。`);
  if (file.size > mostBytes()) return both(`The file has ${megabytes(file.size)}; the limit is ${megabytes(mostBytes())}.`, `文件大小为 ${megabytes(file.size)}，上限是 ${megabytes(mostBytes())}。`);
  if (file.size === 0) return both("The file is empty.", "文件是空的。");
  return null;
}

class Job {
  constructor(file) {
    Object.assign(this, { file, source: chosenSource(), target: chosenTarget(), abort: new AbortController(), link: null });
    this.state = el("p", { class: "state", role: "status" });
    this.seconds = el("span", { class: "seconds", "aria-hidden": "true" });
    this.bar = bothIn(el("progress", { max: 1, value: 0, hidden: "" }), "aria-label", "Progress", "进度");
    this.actions = el("div", { class: "controls" });
    this.direction = el("span", { class: "note" }, directionNode(this));
    this.remove = el("button", { type: "button", class: "quiet", onclick: () => this.leave() }, both("Cancel", "取消"));
    this.actions.append(this.remove);
    this.node = el("li", { class: "job" }, el("div", { class: "job-name" }, el("bdi", {}, file.name), this.direction),
      el("div", { class: "job-state" }, this.state, this.seconds), this.bar, this.actions);
  }

  show(node, kind = "") {
    this.node.dataset.kind = kind;
    this.state.replaceChildren(node);
    this.seconds.textContent = "";
  }

  // Ends the job: nothing is in progress, and it can be removed or, perhaps, tried again.
  end(node, kind, again = false) {
    this.show(node, kind);
    this.bar.hidden = true;
    this.remove.replaceChildren(both("Remove", "移除"));
    if (again) this.actions.prepend(el("button", { type: "button", class: "quiet", onclick: ({ target }) => { target.closest("button").remove(); enqueue(this); } }, both("Try again", "重试")));
  }

  leave() {
    this.abort.abort();
    files.waiting = files.waiting.filter((job) => job !== this);
    if (this.link) URL.revokeObjectURL(this.link);
    const next = this.node.nextElementSibling ?? this.node.previousElementSibling;
    this.node.remove();
    (next?.querySelector("button, a") ?? byId("choose")).focus();
  }

  progress(share) {
    if (share < 1) {
      this.bar.value = share;
      this.show(both(`Sending: ${Math.round(100 * share)} %`, `正在上传：${Math.round(100 * share)}%`));
      return;
    }
    this.bar.removeAttribute("value");  // how much is translated is not known
    this.show(both("Translating…", "正在翻译……"));
    const begun = performance.now();
    clearInterval(this.clock);
    this.clock = setInterval(() => {
      const seconds = Math.round((performance.now() - begun) / 1000);
      this.seconds.replaceChildren(both(`${seconds} s`, `${seconds} 秒`));
    }, 1000);
  }

  async run() {
    const { signal } = this.abort, form = new FormData();
    for (const name of ["source", "target", "file"]) form.append(name, this[name]);
    const { glossary, glossary_mode } = glossaryFor(this.source, this.target);
    if (glossary) {
      form.append("glossary", JSON.stringify(glossary));
      form.append("glossary_mode", glossary_mode);
    }
    this.bar.hidden = false;
    this.progress(0);
    try {
      const waits = (node) => { clearInterval(this.clock); if (node) this.show(node); };
      const answer = await upload("translate_file", form, signal, waits, (share) => this.progress(share));
      if (answer.detectedLanguage) {
        this.source = answer.detectedLanguage.language;
        this.direction.replaceChildren(directionNode(this));
      }
      // The last part only, because behind a proxy the server does not know its address.  The result is fetched at once,
      // because the server deletes it after ten minutes.
      const result = await fetch(`download_file/${answer.translatedFileUrl.split("/").at(-1)}`, { signal });
      if (!result.ok) throw failureOf(await answerOf(result));
      this.offer(await result.blob(), answer.glossary ?? []);
    } catch (error) {
      if (signal.aborted) return;
      const failure = error instanceof Failure ? error : unreachable();
      this.end(failure.text, "failed", failure.again);
    } finally {
      clearInterval(this.clock);
    }
  }

  // terms: those of the glossary that occur in the document.
  offer(blob, terms) {
    const [stem, suffix] = splitName(this.file.name), name = `${stem}.${this.target}${suffix}`;
    this.link = URL.createObjectURL(blob);
    const link = el("a", { class: "button go", href: this.link, download: name }, both("Download", "下载"));
    bothIn(link, "aria-label", `Download ${name}`, `下载 ${name}`);
    this.actions.prepend(link);
    const missed = terms.reduce((count, term) => count + term.missed, 0);
    const all = terms.reduce((count, term) => count + term.occurrences, 0);
    this.end(terms.length ? both(`Translated; glossary terms applied: ${all - missed} of ${all}`, `翻译完成；术语已应用 ${all - missed}/${all} 处`) : both("Translated", "翻译完成"), "done");
  }
}

const directionNode = ({ source, target }) => both(...["en", "zh"].map((reader) => directionIn(reader, source, target)));

async function enqueue(job) {
  job.show(both("Waiting for the file before it", "等待前一个文件"));
  job.remove.replaceChildren(both("Cancel", "取消"));
  files.waiting.push(job);
  if (files.busy) return;
  files.busy = true;
  while (files.waiting.length) await files.waiting.shift().run();
  files.busy = false;
}

function addFiles(list) {
  for (const file of list) {
    const job = new Job(file), problem = problemOf(file);
    byId("jobs").append(job.node);
    if (problem) job.end(problem, "failed");
    else enqueue(job);
  }
}

// A file may be dropped anywhere; otherwise the browser would leave the page to show it.
function listenToFiles() {
  byId("choose").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => {
    addFiles(byId("file").files);
    byId("file").value = "";  // so that the same file can be chosen again
  });
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const dropping = (on) => byId("drop").classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => { if (hasFiles(event)) { event.preventDefault(); dropping(true); } });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) dropping(false); });
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    dropping(false);
    addFiles(event.dataTransfer.files);
    byId("files").scrollIntoView({ block: "nearest" });
  });
}
