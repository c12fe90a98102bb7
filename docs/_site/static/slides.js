// A page with a <div class="slides"> can be presented: one section per screen, turned by keys, buttons or scrolling.
{
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
  document.querySelector(".slides").append(button(chinese ? "放映" : "Present", "", () => present(true)));
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
