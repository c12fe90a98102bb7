// A box that scrolls is reached by Tab, so that the keyboard can scroll it; other boxes are not.
const update = () => {
  for (const box of document.querySelectorAll("pre, .math-block, .table-wrapper, .diagram")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};
addEventListener("resize", update);
addEventListener("load", update);
update();
