// A box that scrolls is reached by Tab, so that the keyboard can scroll it; other boxes are not.
const update = () => {
  for (const box of document.querySelectorAll("pre, .math-block, .table-wrapper, .diagram, p:has(> img)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
addEventListener("resize", update);
addEventListener("load", update);
update();

// A column without a heading names the rows of its table.
for (const head of document.querySelectorAll("thead th:first-child:has(> p:empty)")) {
  head.role = "cell";
  for (const cell of head.closest("table").querySelectorAll("td:first-child:not(:has(> p:empty))")) cell.role = "rowheader";
}

// Live pages (docs/_site/live.py): each page posts its state and the height of its parts. The link beside its frame, and
// the link to the other language, which keeps the section, pass the state on.
const frames = [...document.querySelectorAll(".live iframe")];
const alone = (frame) => frame.closest(".live").querySelector(".alone");
const changed = {};
try {
  const kept = JSON.parse(new URLSearchParams(location.search).get("live") ?? "{}");
  frames.forEach((frame, i) => {
    if (typeof kept[i] !== "string") return;
    changed[i] = alone(frame).hash = kept[i];
    frame.src = alone(frame).href;
  });
} catch { /* not an address of this site */ }

addEventListener("message", ({ source, data }) => {
  const i = frames.findIndex((frame) => frame.contentWindow === source);
  if (i < 0 || !data?.dragoman) return;
  const { address, height } = data.dragoman, link = alone(frames[i]);
  if (height && frames[i].matches(".fits")) frames[i].style.height = `${height + 2}px`;
  if (!address) return;
  if (frames[i].dataset.first && frames[i].dataset.first !== address) changed[i] = address;
  frames[i].dataset.first ??= address;
  link.hash = address;
});

for (const link of document.querySelectorAll(".language a")) {
  link.addEventListener("click", () => {
    const to = new URL(link.href);
    to.hash = location.hash;
    if (Object.keys(changed).length) to.searchParams.set("live", JSON.stringify(changed));
    link.href = to;
  });
}

// Slides have a script and a style of their own.
if (document.querySelector(".slides")) {
  const file = (name) => new URL(name, document.currentScript.src).href;
  const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: file("slides.css") });
  const script = Object.assign(document.createElement("script"), { src: file("slides.js") });
  style.addEventListener("load", () => document.head.append(script));
  document.head.append(style);
}
