// What a test asks of a page from inside; the page itself knows nothing of it.
window.pageTest = (() => {
  const CONTROLS = "button, select, input, textarea, a[href], summary, [tabindex='0'], [contenteditable='true']";
  let watched = [];

  const box = (node) => node.getBoundingClientRect();
  const shown = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;

  function named(node) {
    const label = node.getAttribute?.("aria-label") || node.textContent || "";
    const id = node.id ? `#${node.id}` : "", kind = [...(node.classList || [])].map((name) => `.${name}`).join("");
    return `<${node.localName}${id}${kind}> ${label.trim().replace(/\s+/g, " ").slice(0, 60)}`;
  }

  // Hidden from eyes on purpose, for screen readers: a pixel cut away.
  function onlyHeard(node) {
    for (let at = node; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.clipPath === "inset(50%)" || (box(at).width <= 1 && style.overflow === "hidden")) return true;
    }
    return false;
  }

  function scrolls(node) {
    for (let at = node.parentElement; at && at !== document.documentElement; at = at.parentElement) {
      if (getComputedStyle(at).overflowX !== "visible" && box(at).right <= innerWidth + 1) return true;
    }
    return false;
  }

  function tooWide() {
    const page = document.documentElement, found = [];
    if (page.scrollWidth > page.clientWidth) found.push(`the page, ${page.scrollWidth} px in a window of ${page.clientWidth}`);
    for (const node of document.body.querySelectorAll("*")) {
      if (!shown(node) || onlyHeard(node) || node.ownerSVGElement) continue;
      const { left, right } = box(node);
      if ((right > innerWidth + 1 || left < -1) && !scrolls(node)) found.push(`${named(node)} from ${Math.round(left)} to ${Math.round(right)}`);
    }
    return found.slice(0, 8);
  }

  // Letters of a picture grow and shrink with it.
  function pixels(node) {
    const size = parseFloat(getComputedStyle(node).fontSize);
    const matrix = node.ownerSVGElement && node.getScreenCTM?.();
    return matrix ? size * Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c)) : size;
  }

  function tooSmall(least) {
    const found = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      const node = text.parentElement;
      if (!text.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName)) continue;
      if (node.closest("title, desc") || !shown(node) || onlyHeard(node)) continue;
      if (pixels(node) < least - 0.01) found.add(`${named(node)} at ${pixels(node).toFixed(1)} px`);
    }
    return [...found].slice(0, 8);
  }

  // Of radio buttons with one name the browser's Tab goes to one.
  function controls() {
    const names = new Set();
    return [...document.querySelectorAll(CONTROLS)].filter((node) => {
      if (node.disabled || node.tabIndex < 0 || node.type === "hidden" || !shown(node)) return false;
      if (node.type !== "radio" || !node.name) return true;
      return !names.has(node.name) && names.add(node.name);
    });
  }

  const sameGroup = (one, other) => one === other || (one.type === "radio" && other.type === "radio" && one.name === other.name);

  function marked(node) {
    const style = getComputedStyle(node);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
  }

  function watchFocus() {
    document.body.setAttribute("tabindex", "-1"); // Tab begins where the focus was last: at the top
    document.body.focus();
    document.body.removeAttribute("tabindex");
    watched = controls().map((node) => ({ node, name: named(node), reached: false, seen: false }));
    document.addEventListener("focusin", (event) => {
      for (const entry of watched) {
        if (!sameGroup(entry.node, event.target)) continue;
        entry.reached = true;
        entry.seen ||= marked(event.target) && box(event.target).width > 0;
      }
    });
    return watched.length;
  }

  const focusReport = () => [
    watched.filter((entry) => !entry.reached).map((entry) => entry.name),
    watched.filter((entry) => entry.reached && !entry.seen).map((entry) => entry.name),
  ];

  // [red, green, blue, alpha] of a computed colour, 0 to 1.
  function channels(color) {
    const [a, b, c, alpha = 1] = color.replace("srgb", "").match(/[\d.e-]+/g).map(Number);
    return color.startsWith("color(") ? [a, b, c, alpha] : [a / 255, b / 255, c / 255, alpha];
  }

  const over = (front, back) => [...[0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])), 1];

  function background(node) {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [1, 1, 1, 1]);
  }

  function luminance(color) {
    const [red, green, blue] = color.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  // The contrast of WCAG 2, and what its level AA asks for: 3 for large letters, otherwise 4.5.
  function faint(node, style) {
    const back = background(node), [one, other] = [luminance(over(channels(style.color), back)), luminance(back)];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    return contrast < (large ? 3 : 4.5) ? `${named(node)} at ${contrast.toFixed(2)}` : null;
  }

  function tooFaint() {
    const found = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      const node = text.parentElement;
      if (!text.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(node.tagName)) continue;
      if (node.closest(":disabled") || !shown(node) || onlyHeard(node)) continue;
      found.add(faint(node, getComputedStyle(node)));
    }
    for (const node of document.querySelectorAll("select, input, textarea")) {
      if (shown(node)) found.add(faint(node, getComputedStyle(node))).add(node.placeholder ? faint(node, getComputedStyle(node, "::placeholder")) : null);
    }
    return [...found].filter((entry) => entry !== null).slice(0, 8);
  }

  return { tooWide, tooFaint, tooSmall, controlNames: () => controls().map(named), watchFocus, focusReport };
})();
