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
for (const cell of document.querySelectorAll("table:has(thead th:first-child > p:empty) td:first-child")) cell.role = "rowheader";

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

// A page with a <div class="slides"> can be presented: one section per screen, turned by keys, buttons or scrolling.
const place = document.querySelector(".slides");
if (place) {
  const chinese = document.documentElement.lang.startsWith("zh");
  const slides = [...document.querySelectorAll("article > section > section")];
  const count = document.createElement("span"), bar = document.createElement("nav");
  const here = () => Math.max(0, slides.findLastIndex((slide) => slide.getBoundingClientRect().top < innerHeight / 2));
  const show = (i) => slides[Math.min(Math.max(i, 0), slides.length - 1)].scrollIntoView({ behavior: "instant" });
  const present = (on) => {
    const i = on ? 0 : here();
    document.body.classList.toggle("presents", on);
    show(i);
    count.textContent = `${i + 1} / ${slides.length}`;
    if (on) document.documentElement.requestFullscreen?.().catch(() => { /* not allowed: the window is used */ });
    else if (document.fullscreenElement) document.exitFullscreen();
  };
  const button = (text, name, act) => {
    const made = Object.assign(document.createElement("button"), { textContent: text, onclick: act });
    if (name) made.setAttribute("aria-label", name);
    return made;
  };
  place.append(button(chinese ? "放映" : "Present", "", () => present(true)));
  bar.className = "slide-bar";
  bar.setAttribute("aria-label", chinese ? "幻灯片" : "Slides");
  bar.append(
    button("←", chinese ? "上一张" : "Previous", () => show(here() - 1)), count,
    button("→", chinese ? "下一张" : "Next", () => show(here() + 1)),
    button("×", chinese ? "结束放映" : "End", () => present(false)),
  );
  document.body.append(bar);
  const STEPS = { ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1 };
  addEventListener("keydown", (event) => {
    if (!document.body.classList.contains("presents") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === " " && event.target.closest("button, a")) return;
    if (event.key === "Escape") present(false);
    else if (event.key in STEPS) show(here() + STEPS[event.key]);
    else return;
    event.preventDefault();
  });
  addEventListener("scroll", () => { count.textContent = `${here() + 1} / ${slides.length}`; });
  addEventListener("fullscreenchange", () => { if (!document.fullscreenElement) present(false); });
}
