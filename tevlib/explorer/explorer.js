// The explorer: state in, picture out. Runs as a widget's view and, on a stand-in model, as a page of its own.

const TRAITS = ["answer", "round", "budget", "temperature", "colour_by", "log_scale", "compare", "selected", "what_if", "verifier", "seed", "theme"];
let instances = 0;

function render({ model, el }) {
  const scene = model.get("scene");
  const id = `tx${++instances}`;
  const s = { zoom: null, hover: -1, speed: 2, playing: null, timer: null, batch: null, plays: 0, shown: null };
  const root = h("div", { class: "tx", "data-lm-suppress-shortcuts": "true", lang: "en" });
  const error = h("div", { class: "tx-error", role: "alert", hidden: true });
  el.append(root);
  const stops = [];

  const guarded = (fn) => (...args) => {
    try {
      return fn(...args);
    } catch (problem) {
      stopPlaying();
      error.textContent = `That did not work: ${problem.message}. Nothing was changed.`;
      error.hidden = false;
      return undefined;
    }
  };
  const on = (target, type, fn, options) => target.addEventListener(type, guarded(fn), options);
  const get = (name) => model.get(name);
  const put = (changes) => {
    error.hidden = true;
    s.own = true; // these changes are drawn once, here, and not again as news from the model
    for (const [name, value] of Object.entries(changes)) model.set(name, value);
    s.own = false;
    model.save_changes();
    update();
  };

  // --- what the state means -------------------------------------------------------------------------------------
  const answer = () => scene.answers[get("answer")];
  const cycle = () => answer().rounds[get("round")];
  const stop = () => {
    const place = scene.temperatures.indexOf(get("temperature"));
    return place >= 0 ? place : scene.temperatures.indexOf(answer().temperature);
  };
  const temperature = () => scene.temperatures[stop()];
  const budgetOf = (tree) => (get("budget") < 0 ? tree.tokens.length - 1 : Math.min(get("budget"), tree.tokens.length - 1));
  const theme = () => {
    if (get("theme") !== "auto") return get("theme");
    const lab = document.body.dataset.jpThemeLight;
    if (lab !== undefined) return lab === "true" ? "light" : "dark";
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  };
  const viewOf = (which, edits) => {
    const tree = cycle().trees[which];
    const f = flowOf(tree, temperature(), stop(), budgetOf(tree), edits);
    const { path, bonus } = walk(f, textFrom(answer(), get("round")));
    return { tree, f, place: placed(tree, f), path, bonus, said: { path, bonus }, realised: path.length, exit: path[path.length - 1], values: valuesBy(tree, f, get("colour_by")) };
  };
  const prefixes = (f) => {
    const keys = f.tokens.map(() => "");
    for (let v = 1; v < f.tokens.length; v++) keys[v] = `${keys[f.parents[v]]}/${f.tokens[v]}`;
    return keys;
  };
  const markMoved = (one, other) => {
    const [a, b] = [prefixes(one.f), prefixes(other.f)];
    const there = new Set(other.f.nodes.map((v) => b[v]));
    one.only = new Set(one.f.nodes.filter((v) => !there.has(a[v])));
  };
  const missingOf = (view) => {
    const known = new Map();
    return (v) => {
      if (!known.has(v)) known.set(v, missingTokens(view.tree, view.f, v, temperature(), stop()));
      return known.get(v);
    };
  };

  // --- controls that stay ---------------------------------------------------------------------------------------
  const choice = (name, label, options, read = (x) => x) => {
    const select = h("select", { name, "aria-label": label }, ...options.map(([value, text]) => h("option", { value }, text)));
    on(select, "change", () => put(fresh(name, read(select.value))));
    return select;
  };
  const fresh = (name, value) => {
    stopPlaying();
    if (name === "answer") return { answer: value, round: 0, selected: -1, what_if: [], budget: -1, temperature: scene.answers[value].temperature, compare: -1 };
    if (name === "round") return { round: value, selected: -1, what_if: [] };
    if (name === "budget") return { budget: value, what_if: [], selected: -1 };
    return { [name]: value };
  };
  const slider = (name, label, read) => {
    const input = h("input", { type: "range", name, min: 0, step: 1, "aria-label": label });
    on(input, "input", () => put(fresh(name, read(+input.value))));
    return input;
  };
  const button = (text, label, fn, kind = "") => {
    const made = h("button", { type: "button", class: kind, title: label, "aria-label": label }, text);
    on(made, "click", fn);
    return made;
  };
  const answers = choice("answer", "Prompt", scene.answers.map((a, i) => [i, a.name]), Number);
  const rounds = slider("round", "Round of the answer", (x) => x);
  const budgets = slider("budget", "Budget: draft tokens in the tree", (x) => x);
  const temperatures = slider("temperature", "Temperature of the target", (x) => scene.temperatures[x]);
  const colourBy = choice("colour_by", "Colour by", [["w", "w: leaves here"], ["P", "P: runs through"], ["rho", "ρ: share that leaves"], ["draft", "draft probability"], ["mismatch", "drafter − target"]]);
  const logScale = h("input", { type: "checkbox", name: "log_scale" });
  on(logScale, "change", () => put({ log_scale: logScale.checked }));
  const compare = h("select", { name: "compare", "aria-label": "Compare with" });
  on(compare, "change", () => put({ compare: +compare.value }));
  const verifier = choice("verifier", "Verifier", Object.entries(VERIFIERS));
  const seed = h("input", { type: "number", name: "seed", min: 0, step: 1, "aria-label": "Seed of the draws" });
  on(seed, "change", () => { stopPlaying(); s.plays = 0; resetTally(); put({ seed: Math.max(0, Math.trunc(+seed.value) || 0) }); });
  const speed = h("input", { type: "range", name: "speed", min: 0, max: 4, step: 1, value: 2, "aria-label": "Speed of playing" });
  on(speed, "input", () => { s.speed = +speed.value; });
  const names = Object.fromEntries(["round", "budget", "temperature"].map((name) => [name, h("output", {})]));
  const field = (label, ...inside) => h("label", { class: "tx-field" }, h("span", {}, label), ...inside);

  const tiles = h("div", { class: "tx-tiles", "aria-live": "off" });
  const textBox = h("div", { class: "tx-text-box" });
  const hint = h("div", { class: "tx-hint" });
  const panes = h("div", { class: "tx-panes" });
  const card = h("aside", { class: "tx-card", "aria-label": "Node", "aria-live": "polite" });
  const whatIf = h("div", { class: "tx-what-if", role: "status" });
  const legendBox = h("div", {});
  const sayBox = h("div", { class: "tx-say", role: "status" });
  const histogramBox = h("div", { class: "tx-histogram-box" });
  const playButton = button("▶ Play", "Play the verifier from here to its end (space)", () => (s.timer ? pause() : go()), "tx-main");
  const themeButton = button("◐", "Light or dark", () => put({ theme: theme() === "light" ? "dark" : "light" }));
  root.append(
    h("div", { class: "tx-bar" },
      field("Prompt", answers),
      h("div", { class: "tx-field" }, h("span", {}, "Round"), button("‹", "Earlier round", () => put(fresh("round", Math.max(0, get("round") - 1)))), rounds, button("›", "Later round", () => put(fresh("round", Math.min(answer().rounds.length - 1, get("round") + 1)))), names.round),
      h("div", { class: "tx-push" }), themeButton),
    textBox, tiles,
    h("div", { class: "tx-bar" },
      field("Budget", budgets, names.budget), field("Temperature", temperatures, names.temperature),
      field("Colour", colourBy), h("label", { class: "tx-field" }, logScale, h("span", {}, "log scale")),
      field("Compare", compare),
      h("div", { class: "tx-field" }, button("−", "Smaller", () => zoomBy(0.8)), button("+", "Larger", () => zoomBy(1.25)), button("Fit", "Fit the width", () => { s.zoom = null; update(); }))),
    error, hint,
    h("div", { class: "tx-stage" }, panes, card),
    legendBox, whatIf,
    h("div", { class: "tx-bar tx-player" },
      field("Verifier", verifier), playButton, button("Step", "One step of the verifier", () => { pause(); stepOnce(); }), button("■", "Stop and forget this play", () => { stopPlaying(); update(); }),
      field("Speed", speed), field("Seed", seed),
      h("div", { class: "tx-field" }, h("span", {}, "All three"), ...[100, 2000].map((n) => button(`${n.toLocaleString("en")} plays`, `Play each verifier ${n} times`, () => playMany(n)))),
      button("Reset", "Forget all plays", () => { stopPlaying(); s.plays = 0; resetTally(); update(); })),
    sayBox, histogramBox,
    h("div", { class: "tx-foot" },
      h("span", {}, "Keys in a tree: arrows walk, Enter pins, A adds the best missing token, D drops, U undoes, [ and ] change the round, + − 0 zoom, space plays."),
      h("span", {}, `${(scene.bytes / 1024).toFixed(0)} kB of rounds`)),
  );

  // --- drawing --------------------------------------------------------------------------------------------------
  let tally = null;
  let tallyKey = "";
  const resetTally = () => { tally = Object.fromEntries(ORDER.map((key) => [key, { counts: new Map(), plays: 0 }])); };
  resetTally();

  function facts(view) {
    const a = answer();
    const own = scene.temperatures.indexOf(a.temperature);
    const upTo = a.rounds.slice(0, get("round") + 1);
    const ceilings = upTo.map((r) => 1 + flowOf(r.trees[0], a.temperature, own, r.trees[0].tokens.length - 1, []).coverage);
    const mean = (values) => values.reduce((sum, x) => sum + x, 0) / values.length;
    const base = get("what_if").length ? flowOf(view.tree, temperature(), stop(), budgetOf(view.tree), []).coverage : null;
    return { base, meanLength: mean(upTo.map((r) => r.path.length)), meanCeiling: mean(ceilings) };
  }

  const act = {
    on,
    editable: true,
    add: (node, token) => edit(["add", node, token]),
    drop: (node) => edit(["drop", node, -1]),
  };
  function edit(change) {
    stopPlaying();
    const edits = [...get("what_if"), change];
    const tree = cycle().trees[0];
    const f = flowOf(tree, temperature(), stop(), budgetOf(tree), edits); // throws before anything is kept
    const selected = change[0] === "add" ? f.tokens.length - 1 : f.parents[change[1]];
    put({ what_if: edits, selected: change[0] === "add" ? change[1] : selected });
    s.flash = change[0] === "add" ? f.tokens.length - 1 : null;
  }
  function undo() {
    stopPlaying();
    put({ what_if: get("what_if").slice(0, -1), selected: -1 });
  }

  function update() {
    root.dataset.theme = theme();
    const a = answer();
    const main = viewOf(0, get("what_if"));
    const trees = cycle().trees;
    const other = get("compare") > 0 && get("compare") < trees.length ? viewOf(get("compare"), []) : null;
    if (other) {
      markMoved(main, other);
      markMoved(other, main);
    }
    const key = JSON.stringify(["answer", "round", "budget", "temperature", "what_if"].map(get));
    if (key !== tallyKey) {
      tallyKey = key;
      resetTally();
      s.plays = 0;
    }
    if (s.playing) Object.assign(main, s.playing.shown);
    s.main = main;
    s.missing = missingOf(main);

    answers.value = get("answer");
    rounds.max = a.rounds.length - 1;
    rounds.value = get("round");
    names.round.textContent = `${get("round") + 1} of ${a.rounds.length}`;
    budgets.max = trees[0].tokens.length - 1;
    budgets.value = budgetOf(trees[0]);
    names.budget.textContent = `${main.f.nodes.length - 1} draft tokens`;
    temperatures.max = scene.temperatures.length - 1;
    temperatures.value = stop();
    names.temperature.textContent = temperature() === a.temperature ? `${temperature()} (as decoded)` : `${temperature()} (text was drawn at ${a.temperature})`;
    colourBy.value = get("colour_by");
    logScale.checked = get("log_scale");
    compare.replaceChildren(h("option", { value: -1 }, "one tree"), ...trees.slice(1).map((t, i) => h("option", { value: i + 1 }, t.name)));
    compare.value = other ? get("compare") : -1;
    compare.disabled = trees.length < 2;
    verifier.value = get("verifier");
    seed.value = get("seed");
    playButton.textContent = s.timer ? "⏸ Pause" : "▶ Play";

    const open = textBox.querySelector("details")?.open ?? false;
    const asked = h("details", { class: "tx-prompt" }, h("summary", {}, "Show the prompt"), h("div", { dir: "ltr" }, a.prompt || "(not recorded)"));
    asked.open = open;
    const strip = textStrip(a, get("round"), main.said);
    textBox.replaceChildren(asked, strip);
    requestAnimationFrame(() => { strip.scrollTop = strip.scrollHeight; });
    tiles.replaceChildren(...identityTiles(main, facts(main)));
    drawPanes(main, other);
    drawHint(main);
    drawCard();
    drawWhatIf(main);
    legendBox.replaceChildren(legend(scene, main, get("colour_by"), get("log_scale"), theme()));
    drawPlays(main);
  }

  function drawPanes(main, other) {
    const views = other ? [main, other] : [main];
    s.width ??= panes.clientWidth || 900; // measured once and when it changes: reading it now would lay out the page
    const room = (s.width - 10 * (views.length - 1)) / views.length - 4;
    const widest = Math.max(...views.map((view) => treeSize(scene, view)[0])); // trees side by side share one scale
    const fit = Math.max(views.length > 1 ? 0.66 : 0.8, Math.min(1.15, room / widest));
    s.lastZoom = s.zoom ?? fit;
    while (panes.children.length > views.length) panes.lastChild.remove();
    views.forEach((view, i) => {
      if (!panes.children[i]) panes.append(pane(i));
      const found = panes.children[i];
      const gain = i && other ? ` · ΔC_p ${signed(other.f.coverage - main.f.coverage, 3)}` : "";
      found.querySelector(".tx-pane-name").textContent = views.length > 1 ? `${view.tree.name} · ceiling ${(1 + view.f.coverage).toFixed(3)}${gain}` : view.tree.name;
      const scroll = found.querySelector(".tx-scroll");
      const options = { by: get("colour_by"), log: get("log_scale"), theme: theme(), zoom: s.lastZoom, id: `${id}-${i}` };
      const svg = drawTree(scene, view, options);
      scroll.replaceChildren(svg);
      mark(scroll, i === 0 ? get("selected") : -1);
    });
    panes.classList.toggle("tx-two", views.length > 1);
  }

  function pane(index) {
    const scroll = h("div", { class: "tx-scroll", tabindex: 0, role: "tree", "aria-label": index ? "Second draft tree" : "Draft tree" });
    const nodeAt = (event) => {
      const found = event.target.closest?.("[data-node]");
      return found ? +found.dataset.node : -1;
    };
    on(scroll, "pointerover", (event) => { const v = nodeAt(event); if (v >= 0) hover(v, index); });
    on(scroll, "pointerleave", () => hover(-1, 0));
    let drag = null;
    on(scroll, "pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) drag = { x: event.clientX, y: event.clientY, left: scroll.scrollLeft, top: scroll.scrollTop, moved: false };
    });
    on(scroll, "pointermove", (event) => {
      if (!drag || !(event.buttons & 1)) return;
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (Math.abs(dx) + Math.abs(dy) > 4) drag.moved = true;
      scroll.scrollLeft = drag.left - dx;
      scroll.scrollTop = drag.top - dy;
    });
    on(scroll, "click", (event) => {
      const moved = drag?.moved;
      drag = null;
      const v = nodeAt(event);
      if (moved || index) return;
      put({ selected: v === get("selected") ? -1 : v });
    });
    on(scroll, "wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 1.1 : 1 / 1.1);
    }, { passive: false });
    on(scroll, "keydown", (event) => keys(event, index));
    on(scroll, "focus", () => { if (!index && get("selected") < 0) mark(scroll, s.cursor ?? 0); });
    return h("div", { class: "tx-pane" }, h("div", { class: "tx-pane-name" }), scroll);
  }

  function zoomBy(factor) {
    s.zoom = s.lastZoom = Math.max(0.2, Math.min(3, (s.zoom ?? s.lastZoom ?? 1) * factor));
    for (const svg of panes.querySelectorAll(".tx-scroll > svg")) resize(svg, s.zoom); // the drawing stays as it is
  }

  function mark(scroll, v) {
    for (const old of scroll.querySelectorAll(".tx-selected")) old.classList.remove("tx-selected");
    const node = v >= 0 ? scroll.querySelector(`[data-node="${v}"]`) : null;
    if (!node) return scroll.removeAttribute("aria-activedescendant");
    node.classList.add("tx-selected");
    if (v !== s.seen) requestAnimationFrame(() => bringIntoView(scroll, v));
    s.seen = v;
    scroll.setAttribute("aria-activedescendant", node.id);
    return undefined;
  }

  function bringIntoView(scroll, v) {
    const node = scroll.querySelector(`[data-node="${v}"]`);
    if (!node) return;
    const [inside, whole] = [node.getBoundingClientRect(), scroll.getBoundingClientRect()];
    if (inside.top < whole.top || inside.bottom > whole.bottom) scroll.scrollTop += inside.top - whole.top - whole.height / 2;
    if (inside.left < whole.left || inside.right > whole.right) scroll.scrollLeft += inside.left - whole.left - whole.width / 2;
  }

  function hover(v, index) {
    if (s.hover === v && s.hoverPane === index) return;
    s.hover = v;
    s.hoverPane = index;
    drawCard();
  }

  function drawCard() {
    const pinned = get("selected");
    const view = s.hover >= 0 && s.hoverPane ? viewOf(get("compare"), []) : s.main;
    let v = s.hover >= 0 ? s.hover : pinned >= 0 ? pinned : s.cursor ?? -1;
    if (v >= 0 && view.f.P[v] === undefined) v = -1;
    if (v < 0 || view.f.P[v] === null) {
      card.replaceChildren(h("p", { class: "tx-muted" }, "Point at a node, or walk there with the arrow keys. Click to pin it."));
      return;
    }
    act.editable = !(s.hover >= 0 && s.hoverPane);
    const made = nodeCard(scene, view, v, temperature(), stop(), act);
    if (pinned === v) made.prepend(h("span", { class: "tx-pin" }, "pinned"));
    if (!act.editable) for (const element of made.querySelectorAll("button")) element.disabled = true;
    card.replaceChildren(made);
  }

  // The node where most mass leaves, and the token anywhere that would have kept most.
  function drawHint(view) {
    const { f } = view;
    const leak = f.nodes.reduce((best, v) => (f.w[v] > f.w[best] ? v : best), 0);
    let best = null;
    for (const v of f.nodes) {
      const item = s.missing(v)[0];
      if (item && item.gain > (best?.gain ?? 0)) best = { ...item, node: v };
    }
    const name = (v) => (v === 0 ? "the root" : "");
    const parts = [h("span", {}, "Most mass leaves at "), name(leak) || token(f.tokens[leak]), h("span", {}, ` (w = ${f.w[leak].toFixed(3)}). `), button("Show", "Pin that node", () => put({ selected: leak }), "tx-link")];
    if (best)
      parts.push(h("span", {}, " The one token that would have kept most: "), token(best.token), h("span", {}, " after "), name(best.node) || token(f.tokens[best.node]), h("span", {}, ` (+${best.gain.toFixed(3)}). `), button("Try it", "Add that token to the tree", () => act.add(best.node, best.token), "tx-link"));
    hint.replaceChildren(...parts);
  }
  const token = (t) => h("code", { dir: "ltr" }, scene.labels[t] ?? String(t));

  function drawWhatIf(view) {
    const edits = get("what_if");
    whatIf.hidden = !edits.length;
    if (!edits.length) return whatIf.replaceChildren();
    const { f } = view;
    const budget = budgetOf(view.tree);
    const before = flowOf(view.tree, temperature(), stop(), budget, []);
    const list = h("ul", {});
    let last = before;
    edits.forEach(([kind, node, added], i) => {
      const next = flowOf(view.tree, temperature(), stop(), budget, edits.slice(0, i + 1));
      const change = signed(next.coverage - last.coverage);
      const words = kind === "add" ? ["added ", token(added), " after ", token(f.tokens[node]), `: C_p ${change}, exactly P(v) p_v(a)`] : ["dropped ", token(last.tokens[node]), `: C_p ${change}, what ran through it and below`];
      list.append(h("li", {}, ...words));
      last = next;
    });
    const size = f.nodes.length - 1;
    const over = size - budget;
    const leaves = f.nodes.filter((v) => v > 0 && v < f.recorded && !f.kids[v].length);
    const least = leaves.reduce((best, v) => (best < 0 || f.P[v] < f.P[best] ? v : best), -1);
    const swap = over > 0 && least > 0 ? button(`Keep the budget: drop ${shortLabel(scene, f.tokens[least], 10)} (P = ${f.P[least].toFixed(5)})`, "Drop the leaf that the target reaches least", () => act.drop(least)) : null;
    whatIf.replaceChildren(
      h("div", {}, h("b", {}, "What if"), ` ${size} draft tokens (${over > 0 ? "+" : ""}${over}), C_p ${before.coverage.toFixed(4)} → ${f.coverage.toFixed(4)}, ceiling ${(1 + f.coverage).toFixed(4)}`), list,
      h("div", { class: "tx-row" }, button("Undo", "Take the last change back (U)", undo), button("Undo all", "Back to the recorded tree", () => put({ what_if: [], selected: -1 })), swap));
    return undefined;
  }

  // --- keyboard -------------------------------------------------------------------------------------------------
  function keys(event, index) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { f, place } = s.main;
    const at = get("selected") >= 0 ? get("selected") : s.cursor ?? 0;
    const here = f.P[at] === null || f.P[at] === undefined ? 0 : at;
    const column = f.nodes.filter((v) => f.depth[v] === f.depth[here]).sort((a, b) => place.row[a] - place.row[b]);
    const place_ = column.indexOf(here);
    const go_ = (v) => {
      if (v === undefined || v < 0) return;
      s.cursor = v;
      if (get("selected") >= 0) put({ selected: v });
      const scroll = panes.children[0].querySelector(".tx-scroll");
      mark(scroll, v);
      s.hover = -1;
      drawCard();
    };
    const best = () => { const item = s.missing(here)[0]; if (item) act.add(here, item.token); };
    const table = {
      ArrowRight: () => go_(f.kids[here][0]), ArrowLeft: () => go_(f.parents[here]), ArrowUp: () => go_(column[place_ - 1]), ArrowDown: () => go_(column[place_ + 1]), Home: () => go_(0),
      Enter: () => put({ selected: get("selected") === here ? -1 : here }), Escape: () => { stopPlaying(); put({ selected: -1 }); },
      a: best, d: () => here > 0 && act.drop(here), u: () => get("what_if").length && undo(),
      "[": () => put(fresh("round", Math.max(0, get("round") - 1))), "]": () => put(fresh("round", Math.min(answer().rounds.length - 1, get("round") + 1))),
      "+": () => zoomBy(1.25), "-": () => zoomBy(0.8), 0: () => { s.zoom = null; update(); }, " ": () => (s.timer ? pause() : go()),
    };
    const wanted = table[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!wanted || index) return;
    event.preventDefault();
    event.stopPropagation();
    wanted();
  }

  // --- playing --------------------------------------------------------------------------------------------------
  const nextStream = (key, count) => stream((get("seed") * 1000003 + ORDER.indexOf(key) * 7919 + count * 104729) | 0);

  function begin() {
    const key = get("verifier");
    const found = play(key, s.main.f, s.missing, nextStream(key, tally[key].plays));
    s.playing = { ...found, key, at: 0, shown: { path: [0], exit: null, bonus: undefined, draws: null, testing: -1 } };
  }

  function stepOnce() {
    if (s.playing && s.playing.at >= s.playing.steps.length) s.playing = null;
    if (!s.playing) {
      begin();
      sayBox.textContent = `${VERIFIERS[s.playing.key]}: starts at the root.`;
      if (!s.timer) return advance();
    }
    return advance();
  }

  function advance() {
    const { steps, shown, key } = s.playing;
    const step = steps[s.playing.at++];
    const { f } = s.main;
    const say = (t) => (t === null ? "another token (not recorded)" : scene.labels[t] ?? String(t));
    const trail = (v) => { const found = []; for (let u = v; u >= 0; u = f.parents[u]) found.unshift(u); return found; };
    shown.testing = -1;
    if (step.kind === "draws") {
      shown.draws = step.drawn;
      sayBox.textContent = `Predraw: one token is drawn at each of the ${step.drawn.size} nodes. Only those on one path will count.`;
    } else if (step.kind === "follow") {
      shown.path = trail(step.node);
      sayBox.textContent = `The draw matches the child ${say(f.tokens[step.node])}: follow it.`;
    } else if (step.kind === "test") {
      shown.path = trail(step.taken ? step.child : step.node);
      shown.testing = step.child;
      const share = `${percent(step.accept)} of the residual (${percent(step.rest)} of this node's mass is left)`;
      sayBox.textContent = `Sequential residual: test ${say(f.tokens[step.child])}, ${share}: ${step.taken ? "accepted." : "rejected; its mass goes and the rest is renormalised."}`;
    } else if (step.kind === "exit") {
      shown.path = trail(step.node);
      shown.exit = step.node;
      sayBox.textContent = `TEV: one draw from w over all nodes. The exit is ${say(f.tokens[step.node])}, w = ${f.w[step.node].toFixed(3)}; its whole path is accepted.`;
    } else {
      shown.path = trail(step.node);
      shown.exit = step.node;
      shown.bonus = step.bonus;
      const row = tally[key];
      row.plays += 1;
      row.counts.set(step.node, (row.counts.get(step.node) ?? 0) + 1);
      sayBox.textContent = `${VERIFIERS[key]}: ${shown.path.length - 1} draft tokens accepted, bonus ${say(step.bonus)}: ${shown.path.length} tokens from one target pass.`;
    }
    root.dataset.played = s.playing.at >= steps.length ? String(step.node) : "";
    update();
  }

  function go() {
    stopBatch();
    const tick = guarded(() => {
      stepOnce();
      const done = s.playing.at >= s.playing.steps.length;
      s.timer = done ? null : setTimeout(tick, [1600, 1000, 600, 250, 60][s.speed]);
      playButton.textContent = s.timer ? "⏸ Pause" : "▶ Play";
    });
    s.timer = setTimeout(tick, 0);
  }

  function pause() {
    clearTimeout(s.timer);
    s.timer = null;
    playButton.textContent = "▶ Play";
  }

  function stopBatch() {
    cancelAnimationFrame(s.batch);
    s.batch = null;
  }

  function stopPlaying() {
    pause();
    stopBatch();
    s.playing = null;
    sayBox.textContent = "";
    root.dataset.played = "";
  }

  function playMany(count) {
    stopPlaying();
    update();
    const { f } = s.main;
    const missing = s.missing;
    const aims = Object.fromEntries(ORDER.map((key) => [key, tally[key].plays + count]));
    const frame = guarded(() => {
      const chunk = Math.max(1, Math.ceil(count / 60));
      let left = false;
      for (const key of ORDER) {
        const row = tally[key];
        for (let i = 0; i < chunk && row.plays < aims[key]; i++) {
          const { exit } = play(key, f, missing, nextStream(key, row.plays));
          row.counts.set(exit, (row.counts.get(exit) ?? 0) + 1);
          row.plays += 1;
        }
        left = left || row.plays < aims[key];
      }
      drawPlays(s.main);
      s.batch = left ? requestAnimationFrame(frame) : null;
    });
    s.batch = requestAnimationFrame(frame);
  }

  function drawPlays(view) {
    const played = ORDER.some((key) => tally[key].plays);
    histogramBox.hidden = !played;
    if (!played) return histogramBox.replaceChildren();
    const words = h("p", { class: "tx-muted" }, "Share of plays that left the tree at each node; the upright line is w(v). All three verifiers draw from the same law (Theorem 1).");
    return histogramBox.replaceChildren(histogram(scene, view.f, tally), h("div", { class: "tx-tally-box" }, tallyTable(view.f, tally), words));
  }

  // --- life -----------------------------------------------------------------------------------------------------
  const listen = (name, fn) => {
    model.on(name, fn);
    stops.push(() => model.off(name, fn));
  };
  let asked = false;
  const soon = () => {
    if (asked || s.own) return;
    asked = true;
    queueMicrotask(() => { asked = false; guarded(update)(); });
  };
  for (const name of TRAITS) listen(`change:${name}`, soon);
  listen("change:error", () => {
    error.textContent = model.get("error");
    error.hidden = !model.get("error");
  });
  const watcher = new ResizeObserver(() => {
    const width = panes.clientWidth;
    if (Math.abs(width - (s.width ?? 0)) > 8) { s.width = width; guarded(update)(); }
  });
  watcher.observe(panes);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", soon);
  guarded(update)();
  return () => {
    stopPlaying();
    watcher.disconnect();
    dark.removeEventListener("change", soon);
    for (const stopIt of stops) stopIt();
    root.remove();
  };
}
