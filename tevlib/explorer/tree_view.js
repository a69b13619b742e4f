// One tree as SVG. Every text goes in as a text node, so that no token can become markup.

const SVG = "http://www.w3.org/2000/svg";

function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function g(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function shortLabel(scene, token, longest = 14) {
  const text = scene.short[token] ?? scene.labels[token] ?? `<${token}>`;
  const letters = [...text];
  return letters.length <= longest ? text : letters.slice(0, longest - 1).join("") + "…";
}

function figures(value) {
  if (value === null) return "";
  if (Math.abs(value) < 0.005) return "·";
  return Math.abs(value) < 0.995 ? value.toFixed(2).replace("0.", ".") : value.toFixed(1);
}

function treeSize(scene, { place }) {
  const { row, box, gap, margin } = scene.geometry;
  const last = place.left.length - 1;
  return [place.left[last] + place.width[last] + gap + margin / 2, 2 * margin + row * Math.max(...place.row) + box];
}

// The SVG of a view {tree, f, place, path, bonus, values, only, draws, testing}; nodes carry data-node.
function drawTree(scene, view, options) {
  const { tree, f, place } = view;
  const { row, box, gap, margin } = scene.geometry;
  const onPath = new Set(view.path);
  const x = (v) => place.left[place.depth[v]];
  const y = (v) => margin + row * place.row[v];
  const across = (v) => place.width[place.depth[v]];
  const [width, height] = treeSize(scene, view);

  const curve = (v, kind, thickness) => {
    const u = f.parents[v];
    const [x0, y0, x1, y1] = [x(u) + across(u), y(u) + box / 2, x(v), y(v) + box / 2];
    const middle = (x0 + x1) / 2;
    return g("path", { class: kind, d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`, "stroke-width": thickness });
  };
  const edges = g("g", { class: "tx-edges" });
  const boxes = g("g", {});
  const ghosts = [];
  for (let v = 0; v < f.recorded; v++) if (f.P[v] === null) ghosts.push(v);
  for (const v of ghosts) {
    edges.append(curve(v, "tx-ghost-edge", 1));
    boxes.append(
      g("g", { class: "tx-ghost" },
        g("rect", { x: x(v), y: y(v), width: across(v), height: box, rx: 6 }),
        g("text", { x: x(v) + 8, y: y(v) + box / 2, dy: "0.35em" }, shortLabel(scene, f.tokens[v]))),
    );
  }
  const order = f.nodes.filter((v) => v > 0).sort((a, b) => onPath.has(a) - onPath.has(b) || f.P[b] - f.P[a]);
  for (const v of order) edges.append(curve(v, onPath.has(v) ? "tx-edge tx-taken" : "tx-edge", (1.2 + 9.8 * f.P[v]).toFixed(2)));

  const largest = largestBy(view.values, options.by);
  for (const v of f.nodes) {
    const fill = fillOf(scene, view.values[v], largest, options.by, options.log, options.theme);
    const ink = inkOn(fill);
    const kind = ["tx-node"];
    if (onPath.has(v)) kind.push("tx-taken");
    if (v >= f.recorded) kind.push("tx-added");
    if (view.only && view.only.has(v)) kind.push("tx-only");
    if (v === view.testing) kind.push("tx-testing");
    if (v === view.exit) kind.push("tx-exit");
    const label = scene.labels[f.tokens[v]] ?? "";
    const node = g("g", {
      class: kind.join(" "), "data-node": v, role: "treeitem", "aria-level": f.depth[v] + 1, id: `${options.id}-${v}`,
      "aria-label": `${label}: P ${f.P[v].toFixed(4)}, w ${f.w[v].toFixed(4)}`,
    });
    node.append(g("rect", { x: x(v), y: y(v), width: across(v), height: box, rx: 6, fill }));
    node.append(g("text", { class: "tx-label", x: x(v) + 8, y: y(v) + box / 2, dy: "0.35em", fill: ink }, shortLabel(scene, f.tokens[v])));
    node.append(g("text", { class: "tx-number", x: x(v) + across(v) - 8, y: y(v) + box / 2, dy: "0.35em", fill: ink }, figures(view.values[v])));
    if (view.only && view.only.has(v)) node.append(g("circle", { class: "tx-only-mark", cx: x(v), cy: y(v), r: 4.5 }));
    boxes.append(node);
  }
  const chips = g("g", {});
  if (view.draws)
    for (const [v, { child, token }] of view.draws)
      chips.append(
        g("text", { class: child === null ? "tx-draw" : "tx-draw tx-match", x: x(v) + across(v) + 5, y: y(v) + 3 },
          "→ " + (token === null ? "another" : shortLabel(scene, token, 8))),
      );
  if (view.exit !== null && view.bonus !== undefined) {
    const v = view.exit;
    const top = y(v) + (f.kids[v].length ? 18 : 3);
    const left = x(v) + across(v) + 8;
    const text = view.bonus === null ? "another" : shortLabel(scene, view.bonus, 8);
    chips.append(
      g("g", { class: "tx-bonus" },
        g("path", { d: `M${left - 8} ${y(v) + box / 2}C${left - 4} ${y(v) + box / 2} ${left - 4} ${top + 9} ${left} ${top + 9}` }),
        g("rect", { x: left, y: top, width: gap - 14, height: 18, rx: 9 }),
        g("text", { x: left + 7, y: top + 9, dy: "0.35em" }, text)),
    );
  }
  return resize(g("svg", { viewBox: `0 0 ${width} ${height}`, role: "presentation" }, edges, boxes, chips), options.zoom);
}

function resize(svg, zoom) {
  const [width, height] = svg.getAttribute("viewBox").split(" ").slice(2);
  svg.setAttribute("width", Math.round(width * zoom));
  svg.setAttribute("height", Math.round(height * zoom));
  return svg;
}
