"use strict";
// The page of a result. Texts of models and datasets enter the page as text alone, by `textContent`.

const ROW = 64; // pixels of a row of the list
const OVERSCAN = 6; // rows that are drawn above and below what is seen
const SHOWN = 6000; // characters of a text that are shown at first
const MOST_STEPS = 2_000_000; // steps of a comparison of two texts
const MOST_IN_FIELD = 2_000_000; // characters of an export that a text field shows
const REASONS = [["answer", "The answer that was found"], ["judge_response", "The judge's words"], ["judge_prompt", "What the judge was asked"], ["program_output", "The program's end and output"], ["tie", "Ties"]];
const LIMITED = ["length", "reasoning"]; // reasons by which a text ends before the model was done

const $ = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number";
const fixed = (value, sign) => (isNumber(value) ? (sign && value > 0 ? "+" : "") + value.toFixed(3).replace("-", "−") : "–");
const short = (value) => (isNumber(value) ? (Number.isInteger(value) ? String(value) : value.toFixed(3)) : "–");
const percent = (value) => (value >= 0.0995 || value === 0 ? Math.round(value * 100) : (value * 100).toFixed(1)) + " %";
const count = (value) => value.toLocaleString("en");
const time = (text) => text.slice(0, 16).replace("T", " ") + " UTC";

/** An element with attributes and children. A child that is text stays text. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

// ---- texts

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u{e0100}-\u{e01ef}]/gu;
const isKept = (code) => [10, 9, 0x200c, 0x200d].includes(code) || (code >= 0x1f000 && code < 0x1fc00) || (code >= 0x20000 && code < 0x3fffe);

/** A text with escapes for characters that are not seen, or that reorder a line. */
function visible(text) {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    if (isKept(code)) return character;
    if (code === 13) return "\\r";
    const hex = code.toString(16);
    return code < 0x100 ? "\\x" + hex.padStart(2, "0") : code < 0x10000 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
  });
}

const oneLine = (text) => visible(text.slice(0, 400).replace(/\r\n|\n/g, "⏎").replaceAll("\t", " "));

/** A block of text. Of a long one a part is shown, and the rest on request. */
function block(text, { atEnd = false, name = null } = {}) {
  const element = make("pre", { class: text ? "text" : "text quiet", dir: "auto", tabindex: "0", "aria-label": name });
  if (text.length <= SHOWN) {
    element.textContent = text ? visible(text) : "(empty)";
    return element;
  }
  element.textContent = atEnd ? "…" + visible(text.slice(-SHOWN)) : visible(text.slice(0, SHOWN)) + "…";
  const all = make("button", { type: "button", class: "all", onclick: () => { element.textContent = visible(text); all.remove(); } },
    `Show all ${count(text.length)} characters`);
  return make("div", {}, element, all);
}

const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

/** The pieces of two texts, each with whether it is in both. Beyond `MOST_STEPS`, the whole middle counts as different. */
function difference(a, b) {
  const [left, right] = [words(a), words(b)];
  let start = 0, end = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start++;
  while (end < left.length - start && end < right.length - start && left[left.length - 1 - end] === right[right.length - 1 - end]) end++;
  const [x, y] = [left.slice(start, left.length - end), right.slice(start, right.length - end)];
  const same = [new Set(), new Set()]; // places in x and y that are common
  if (x.length * y.length <= MOST_STEPS) {
    const width = y.length + 1, lengths = new Uint32Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i--) for (let j = y.length - 1; j >= 0; j--)
      lengths[i * width + j] = x[i] === y[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    for (let i = 0, j = 0; i < x.length && j < y.length;) {
      if (x[i] === y[j]) { same[0].add(i++); same[1].add(j++); }
      else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
      else j++;
    }
  }
  const pieces = (all, middle, common) => {
    const found = [];
    const add = (text, isSame) => {
      if (found.length && found.at(-1)[1] === isSame) found.at(-1)[0] += text;
      else found.push([text, isSame]);
    };
    all.slice(0, start).forEach((text) => add(text, true));
    middle.forEach((text, place) => add(text, common.has(place)));
    all.slice(all.length - end).forEach((text) => add(text, true));
    return found;
  };
  return [pieces(left, x, same[0]), pieces(right, y, same[1])];
}

/** Two texts as blocks in which the words that differ are marked. */
function comparedBlocks(a, b, names) {
  if (!state.marks || a.length > 4 * SHOWN || b.length > 4 * SHOWN) return [block(a, { name: names[0] }), block(b, { name: names[1] })];
  const both = difference(visible(a), visible(b));
  const isOther = !both[0].some(([text, isSame]) => isSame && text.trim()); // nothing is common, so that marks would show nothing
  return both.map((pieces, side) => make("pre", { class: pieces.length ? "text" : "text quiet", dir: "auto", tabindex: "0", "aria-label": names[side] },
    pieces.length ? pieces.map(([text, isSame]) => (isSame || isOther ? text : make("mark", {}, text))) : "(empty)"));
}

// ---- what the page holds

let page = null; // the content of the page
let samples = []; // samples with what is computed of them
let shown = []; // places of the samples that pass the filters, in the order of the list
let metric = null;
const marked = new Set(); // places of the samples that are marked for an export
const DEFAULTS = { show: "", metric: "", subject: "", q: "", sort: "order", id: "", from: "", to: "", low: "", high: "", marks: true };
const state = { ...DEFAULTS };

const KINDS = [
  ["", "All", "", () => true],
  ["worse", "Worse", "▼", (each) => each.flip === -1],
  ["better", "Better", "▲", (each) => each.flip === 1],
  ["wrong", "Wrong", "✗", (each) => each.right === false],
  ["right", "Right", "✓", (each) => each.right === true],
  ["error", "Errors", "!", (each) => each.failed],
  ["cut", "Cut off", "…", (each) => each.cut],
];
const SORTS = {
  order: ["Order of the dataset", null],
  regression: ["Largest fall first", (each) => (each.loss === null ? -Infinity : each.loss)],
  confident: ["Most confident when wrong", (each) => (each.right === false && each.confidence !== null ? each.confidence : -Infinity)],
  cost: ["Highest cost", (each) => each.now.cost ?? -Infinity],
  tokens: ["Most output tokens", (each) => each.now.output_tokens ?? -Infinity],
  latency: ["Slowest", (each) => each.now.latency_s ?? -Infinity],
  length: ["Longest answer", (each) => each.answer.length],
  score: ["Lowest score", (each) => (each.value === null ? -Infinity : -each.value)],
};

async function read() {
  const encoded = $("data").textContent;
  $("data").remove();
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(encoded);
  else {
    const text = atob(encoded);
    bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  }
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** The shares of the choices: the softmax of their log-probabilities. Null where one has none. */
function shares(answer) {
  const values = answer && answer.logprobs;
  if (!values || values.length < 2) return null;
  const known = values.filter(isNumber);
  if (!known.length) return null;
  const most = Math.max(...known), weights = values.map((value) => (isNumber(value) ? Math.exp(value - most) : 0));
  const sum = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / sum);
}

function chosen(answer) {
  const of = shares(answer);
  return of ? of.indexOf(Math.max(...of)) : null;
}

/** The answer as one text: what the model wrote, or the choice of the highest log-probability. */
function answerOf(sample, answer) {
  if (!answer) return "";
  if (answer.error) return "error: " + answer.error;
  if (answer.text) return answer.text[0];
  const place = chosen(answer);
  return place === null ? "" : (answer.choices || sample.choices || [])[place] ?? `choice ${place + 1}`;
}

function unpack(raw) {
  const sample = raw;
  sample.examples = isNumber(raw.examples) ? page.examples[raw.examples] : [];
  sample.now = raw.now || {};
  const question = (raw.turns || []).map(([, text]) => text);
  if (Array.isArray(raw.prompt)) {
    [sample.head, sample.tail] = [page.heads[raw.prompt[0]], page.tails[raw.prompt[1]]];
    sample.prompt = null; // put together when it is shown
  } else sample.head = sample.tail = "";
  sample.question = question.length ? question[0] : sample.prompt || "";
  sample.answer = answerOf(sample, sample.now);
  sample.earlier = sample.before ? answerOf(sample, sample.before) : null;
  const of = shares(sample.now);
  sample.confidence = of ? Math.max(...of) : null;
  sample.cut = Boolean(sample.now.truncated_tokens) || (sample.now.finish_reason || []).some((reason) => LIMITED.includes(reason));
  return sample;
}

const promptOf = (sample) => (sample.prompt === null ? sample.head + sample.question + sample.tail : sample.prompt);

/** Computes what depends on the metric. */
function score() {
  metric = page.metrics.find((each) => each.has_scores && each.metric === state.metric) || page.metrics.find((each) => each.metric === page.headline) || null;
  const name = metric ? metric.metric : "";
  const direction = metric && metric.higher_is_better !== null ? (metric.higher_is_better ? 1 : -1) : 0;
  let isShare = direction !== 0;
  for (const each of samples) {
    each.value = each.now.scores?.[name] ?? null;
    each.valueBefore = each.before?.scores?.[name] ?? null;
    const both = each.value !== null && each.valueBefore !== null;
    each.loss = both ? (each.valueBefore - each.value) * (direction || 1) : null;
    each.flip = both && direction ? -Math.sign(each.loss) : 0;
    each.failed = Boolean(each.error || each.now.error || each.now.score_errors?.[name]);
    if (each.value !== null && (each.value < 0 || each.value > 1)) isShare = false;
  }
  for (const each of samples) each.right = isShare && each.value !== null ? (each.value >= 0.5) === direction > 0 : null;
}

/** All that the search finds: everything of a sample and its two answers but few-shot examples, which samples share. */
function haystack(each) {
  const sides = [each.now, each.before || {}].flatMap((side) => [side.text, side.raw, side.reasoning, side.tool_calls, side.steps, side.error,
    Object.values(side.score_errors || {}), Object.values(side.items || {}), Object.values(side.explanations || {}).map(Object.values), side.choices]);
  each.text ??= [...new Set([each.sample_id, each.sample_name, each.subject, (each.turns || []).map(([, text]) => text), each.turns ? null : each.prompt, each.choices, each.gold,
    each.context, each.error, each.answer, each.earlier, sides].flat(Infinity))].filter(Boolean).join("\n").toLowerCase();
  return each.text;
}

/** Prepares the search while the browser has nothing else to do. */
function prepareSearch(place = 0) {
  const until = performance.now() + 8;
  while (place < samples.length && performance.now() < until) haystack(samples[place++]);
  if (place < samples.length) setTimeout(prepareSearch, 4, place);
}

const limit = (text) => (text === "" || Number.isNaN(Number(text)) ? null : Number(text));

/** The places that pass all filters but that of the kind. */
function filtered() {
  const query = state.q.toLowerCase(), [from, to, low, high] = [state.from, state.to, state.low, state.high].map(limit);
  const found = [];
  for (let place = 0; place < samples.length; place++) {
    const each = samples[place];
    if (state.subject && each.subject !== state.subject) continue;
    if (from !== null && each.answer.length < from) continue;
    if (to !== null && each.answer.length > to) continue;
    if (low !== null && !(each.confidence !== null && each.confidence * 100 >= low)) continue;
    if (high !== null && !(each.confidence !== null && each.confidence * 100 <= high)) continue;
    if (query && !haystack(each).includes(query)) continue;
    found.push(place);
  }
  return found;
}

// ---- the list

function refresh() {
  const places = filtered();
  const isKind = (KINDS.find(([kind]) => kind === state.show) || KINDS[0])[3];
  shown = places.filter((place) => isKind(samples[place]));
  const by = (SORTS[state.sort] || SORTS.order)[1];
  if (by) {
    const keys = new Map(shown.map((place) => [place, by(samples[place])]));
    shown.sort((a, b) => (keys.get(a) === keys.get(b) ? a - b : keys.get(a) < keys.get(b) ? 1 : -1));
  }
  for (const [kind, , , test] of KINDS) {
    const button = $("show-" + kind);
    const number = places.reduce((sum, place) => sum + (test(samples[place]) ? 1 : 0), 0);
    button.setAttribute("aria-pressed", String(kind === state.show));
    button.querySelector(".number").textContent = count(number);
    button.hidden = !number && kind !== "" && kind !== state.show;
  }
  const of = samples.length === shown.length ? "" : ` of ${count(samples.length)}`;
  $("count").textContent = `${count(shown.length)}${of} samples` + (marked.size ? `, ${count(marked.size)} marked` : "");
  $("export").textContent = marked.size ? `Export ${count(marked.size)} marked` : "Export";
  $("space").style.height = shown.length * ROW + "px";
  drawn.forEach((row) => row.remove());
  drawn.clear();
  draw();
}

const drawn = new Map(); // index in the list -> the row

function draw() {
  const list = $("list"), first = Math.max(0, Math.floor(list.scrollTop / ROW) - OVERSCAN);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + OVERSCAN);
  for (const [index, row] of drawn) if (index < first || index >= last) { row.remove(); drawn.delete(index); }
  for (let index = first; index < last; index++) if (!drawn.has(index)) {
    const row = rowOf(index);
    drawn.set(index, row);
    $("space").append(row);
  }
  const at = index();
  if (drawn.has(at)) list.setAttribute("aria-activedescendant", "row-" + at);
  else list.removeAttribute("aria-activedescendant");
}

function verdict(each) {
  if (each.failed) return ["!", "bad", "error"];
  if (each.flip === -1) return ["▼", "bad", "worse"];
  if (each.flip === 1) return ["▲", "good", "better"];
  if (each.right === true) return ["✓", "quiet", "right"];
  if (each.right === false) return ["✗", "wrong", "wrong"];
  return ["•", "quiet", "scored"];
}

function rowOf(place) {
  const each = samples[shown[place]], [sign, tone, word] = verdict(each);
  const isMarked = marked.has(shown[place]);
  const question = each.question.length > 600 ? "…" + each.question.trimEnd().slice(-160).trim() : each.question.trim(); // a long one asks at its end
  const differs = each.earlier !== null && each.earlier !== each.answer;
  const row = make("div", {
    role: "option", id: "row-" + place, class: "row", "aria-selected": String(each.sample_id === state.id), "aria-posinset": place + 1,
    "aria-setsize": shown.length, onclick: () => open(place),
  },
    make("span", { class: "sign " + tone, title: word }, make("span", { "aria-hidden": "true" }, sign), make("span", { class: "hidden" }, word + (isMarked ? ", marked. " : ". "))),
    make("span", { class: "lines" },
      make("span", { class: "question", dir: "auto" }, each.sample_name ? make("span", { class: "quiet" }, oneLine(each.sample_name), " · ") : null, oneLine(question)),
      make("span", { class: "answers", dir: "auto" },
        differs ? [make("span", { class: "was" }, oneLine(each.earlier) || "(empty)"), make("span", { class: "arrow" }, " → ")] : null,
        make("span", { class: tone }, oneLine(each.answer) || "(empty)"))),
    make("span", { class: "figures" },
      make("b", {}, each.valueBefore !== null && each.valueBefore !== each.value ? `${short(each.valueBefore)} → ${short(each.value)}` : short(each.value)),
      make("span", {}, isMarked ? "☑ marked" : each.confidence !== null ? percent(each.confidence) : each.subject ? oneLine(each.subject) : "")));
  row.style.top = place * ROW + "px";
  return row;
}

const index = () => shown.findIndex((place) => samples[place].sample_id === state.id);

function open(place, { focus = false } = {}) {
  if (!shown.length) return;
  const at = Math.max(0, Math.min(place, shown.length - 1)), list = $("list");
  state.id = samples[shown[at]].sample_id;
  document.body.classList.add("open");
  for (const [number, row] of drawn) row.setAttribute("aria-selected", String(number === at));
  if (at * ROW < list.scrollTop) list.scrollTop = at * ROW;
  else if ((at + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * ROW - list.clientHeight;
  draw();
  detail(samples[shown[at]]);
  remember();
  if (focus) $("detail").focus();
}

function close() {
  document.body.classList.remove("open");
  $("list").focus();
}

// ---- one sample

function section(title, ...children) {
  const present = children.flat().filter(Boolean);
  return present.length ? make("section", { class: "part" }, make("h3", {}, title), present) : null;
}

function turns(list) {
  return list.map(([role, text]) => make("div", { class: "turn " + (["user", "assistant", "system"].includes(role) ? role : "") },
    make("p", { class: "label" }, oneLine(role)), block(text, { atEnd: role === "user", name: role })));
}

function promptPart(sample) {
  const examples = sample.examples.length
    ? make("details", { class: "fold" }, make("summary", {}, `${sample.examples.length} turns of examples before the question`), turns(sample.examples)) : null;
  const exact = make("details", { class: "fold" }, make("summary", {}, "The exact text that was sent"));
  exact.addEventListener("toggle", () => {
    if (exact.childElementCount > 1) return;
    const isLong = sample.prompt === null && sample.head.length > 400;
    if (isLong) exact.append(make("details", { class: "fold" }, make("summary", {}, `${count(sample.head.length)} characters before the question`), block(sample.head)));
    exact.append(block(isLong ? sample.question + sample.tail : promptOf(sample), { atEnd: true, name: "Exact prompt" }));
  });
  const images = sample.images ? make("p", { class: "quiet" }, `${sample.images} images belong to the prompt; they are in the lake`) : null;
  const earlier = sample.before?.prompt !== undefined
    ? make("details", { class: "fold" }, make("summary", {}, `Another prompt was sent ${side("before")}`), comparedBlocks(sample.before.prompt, promptOf(sample), ["Before", "Now"])) : null;
  return section("Asked", examples, sample.turns ? turns(sample.turns) : block(promptOf(sample), { atEnd: true }), images, exact, earlier);
}

function choicePart(sample) {
  const others = sample.before?.choices; // log-probabilities before are of these
  if (!(sample.choices || others?.length) || !(sample.now.logprobs || sample.before?.logprobs)) return null;
  const [now, before] = [shares(sample.now), others ? null : shares(sample.before)];
  const [pick, earlier] = [chosen(sample.now), others ? null : chosen(sample.before)];
  const bar = (of, place, which, answer) => of === null ? null : make("div", { class: "share " + which },
    make("span", { class: "track", role: "img", "aria-label": `${side(which)}: ${percent(of[place])}` }, Object.assign(make("i"), { style: `width:${(of[place] * 100).toFixed(1)}%` })),
    make("span", { class: "value", title: `log-probability ${short(answer.logprobs[place])}` }, percent(of[place])));
  const named = (text, pills) => make("div", { class: "choice" }, make("span", { dir: "auto", class: "mono" }, visible(text.length > 600 ? text.slice(0, 600) + "…" : text).trim() || "(empty)"), pills);
  const rows = (sample.choices || []).map((text, place) => {
    const isGold = (sample.gold_index || []).includes(place);
    const pills = [isGold && make("span", { class: "pill good" }, "✓ correct"), place === pick && make("span", { class: "pill " + (isGold ? "good" : "bad") }, "chosen now"),
      place === earlier && earlier !== pick && make("span", { class: "pill" }, "chosen before")];
    return make("li", { class: isGold ? "gold" : "" }, named(text, pills),
      bar(now, place, "now", sample.now), before && bar(before, place, "before", sample.before));
  });
  return section("Choices", make("ul", { class: "choices" }, rows), make("p", { class: "quiet" },
    "Share of each choice among all: the softmax of their log-probabilities. " + (before ? `The upper bar is ${side("now")}, the lower one ${side("before")}.` : "")), othersPart());

  /** The choices of the other result where they are not those of now, each with its own share. */
  function othersPart() {
    if (!others) return null;
    if (!others.length) return make("p", { class: "quiet" }, `The choices ${side("before")} are not in the lake.`);
    const [of, own] = [shares(sample.before), chosen(sample.before)];
    return [make("p", { class: "label" }, `Other choices ${side("before")}`), make("ul", { class: "choices others" }, others.map((text, place) =>
      make("li", {}, named(text, place === own ? [make("span", { class: "pill" }, "chosen before")] : []), bar(of, place, "before", sample.before))))];
  }
}

const isOther = () => page.against !== null && page.against.model !== page.model;
const side = (which) => (isOther() ? oneLine(which === "now" ? page.model : page.against.model) : which);

function answerPart(sample) {
  const [now, before] = [sample.now.text || [], sample.before?.text || []];
  if (!now.length && !before.length) return null;
  const parts = [];
  for (let place = 0; place < Math.max(now.length, before.length); place++) {
    const [text, earlier] = [now[place], before[place]];
    const label = (which, own) => {
      const value = (which === "now" ? sample.now : sample.before)?.text_values?.[metric?.metric]?.[place];
      return make("p", { class: "label" }, `${side(which)}${own > 1 ? `, text ${place + 1} of ${own}` : ""}${value === undefined ? "" : ` (${short(value)})`}`);
    };
    if (sample.before && text !== undefined && earlier !== undefined && text === earlier) {
      parts.push(make("div", {}, make("p", { class: "label" }, `${side("before")} and ${side("now")}: the same text`), block(text)));
    } else if (sample.before) {
      const blocks = text !== undefined && earlier !== undefined ? comparedBlocks(earlier, text, ["Answer before", "Answer now"])
        : [earlier, text].map((each) => (each === undefined ? make("p", { class: "text quiet" }, "(no text)") : block(each)));
      parts.push(make("div", { class: "sides" },
        make("div", { class: tone(sample, "before") }, label("before", before.length), blocks[0]),
        make("div", { class: tone(sample, "now") }, label("now", now.length), blocks[1])));
    } else parts.push(make("div", {}, now.length > 1 ? label("now", now.length) : null, block(text)));
  }
  return section(sample.before ? "Answers" : "Answer", parts, folded(sample));
}

function tone(sample, which) {
  if (!sample.flip) return "";
  return (sample.flip < 0) === (which === "now") ? "wrong-side" : "right-side";
}

/** Reasoning, whole texts and calls of tools, folded. */
function folded(sample) {
  const found = [];
  for (const which of ["before", "now"]) {
    const answer = sample[which];
    if (!answer) continue;
    const add = (title, texts) => texts.forEach((text) => text && found.push(make("details", { class: "fold" }, make("summary", {}, `${title} ${side(which)} (${count(text.length)} characters)`), block(text))));
    add("Reasoning", answer.reasoning || []);
    add("The whole text", answer.raw || []);
    const steps = (answer.steps || []).map(([who, text, mark]) => make("div", {}, make("p", { class: "label" }, oneLine(who), mark ? make("strong", { class: "wrong" }, ` ${mark}`) : null), text ? block(text) : null));
    if (steps.length) found.push(make("details", { class: "fold" }, make("summary", {}, `Episode ${side(which)} (${count(steps.length)} steps)`), ...steps));
    add("Calls of tools", (answer.tool_calls || []).map((calls) => (calls || []).join("\n")));
  }
  return found;
}

function scorePart(sample) {
  const rows = page.metrics.filter(({ metric: name }) => name in (sample.now.scores || {}) || name in (sample.before?.scores || {})).map((each) => {
    const [now, before] = [sample.now.scores?.[each.metric], sample.before?.scores?.[each.metric]];
    const better = isNumber(now) && isNumber(before) && now !== before && each.higher_is_better !== null ? (now > before) === each.higher_is_better : null;
    return make("tr", {}, make("th", { scope: "row" }, oneLine(each.metric), each.higher_is_better === false ? make("span", { class: "quiet" }, " (lower is better)") : null),
      sample.before ? make("td", { class: "n" }, short(before)) : null,
      make("td", { class: "n " + (better === null ? "" : better ? "good" : "bad") }, short(now), better === null ? "" : better ? " ▲" : " ▼"));
  });
  const why = [];
  for (const which of ["before", "now"]) {
    const answer = sample[which];
    if (!answer) continue;
    const add = (label, text) => why.push(make("div", {}, make("p", { class: "label" }, sample.before ? `${label}, ${side(which)}` : label), block(text)));
    if (which === "now" && sample.error) add("The prompt was not sent", sample.error);
    if (answer.error) add("Error of the answer", answer.error);
    for (const [name, text] of Object.entries(answer.score_errors || {})) if (text !== answer.error) add(`Error of ${oneLine(name)}`, text);
    for (const [name, text] of Object.entries(answer.items || {})) add(`What ${oneLine(name)} found`, text);
    for (const [name, kinds] of Object.entries(answer.explanations || {})) for (const [kind, title] of REASONS) {
      for (const text of kinds[kind] || []) add(`${title} (${oneLine(name)})`, text ?? "(none was found)");
    }
    const limits = (answer.finish_reason || []).filter((reason) => LIMITED.includes(reason));
    if (limits.length) add("Cut off", limits.includes("reasoning") ? "The text ends inside its reasoning, so that there is no answer." : "The text reached the most tokens that were allowed.");
    if (answer.truncated_tokens) add("Cut prompt", `The first ${count(answer.truncated_tokens)} tokens of the prompt did not fit into the model's context.`);
  }
  const head = make("tr", {}, make("th", { scope: "col" }, "metric"), sample.before ? make("th", { scope: "col", class: "n" }, side("before")) : null, make("th", { scope: "col", class: "n" }, side("now")));
  const context = sample.context ? make("details", { class: "fold" }, make("summary", {}, "What the metrics were given"), block(pretty(sample.context))) : null;
  return section("Why this score", rows.length ? make("table", {}, make("thead", {}, head), make("tbody", {}, rows)) : null, why, context);
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function costPart(sample) {
  const names = [["prompt_tokens", "Prompt tokens", count], ["output_tokens", "Output tokens", count], ["latency_s", "Seconds", (value) => value.toFixed(3)],
    ["cost", "Cost", (value) => "$" + value.toPrecision(3)]];
  const shownOnes = names.filter(([name]) => isNumber(sample.now[name]) || isNumber(sample.before?.[name]));
  if (!shownOnes.length) return null;
  return section("Tokens and time", make("dl", { class: "facts" }, shownOnes.map(([name, label, form]) => make("div", {}, make("dt", {}, label),
    make("dd", {}, isNumber(sample.now[name]) ? form(sample.now[name]) : "–", isNumber(sample.before?.[name]) && sample.before[name] !== sample.now[name] ? make("span", { class: "quiet" }, ` (${side("before")} ${form(sample.before[name])})`) : null)))));
}

function detail(sample) {
  const place = index(), [sign, kind, word] = verdict(sample), target = $("detail");
  const isMarked = marked.has(shown[place]);
  const title = make("h2", {}, make("span", { class: `pill ${kind === "wrong" ? "bad" : kind}` }, `${sign} ${word}`), " ", sample.subject ? make("span", {}, oneLine(sample.subject), " · ") : null, sample.sample_name ? make("span", {}, oneLine(sample.sample_name), " · ") : null, make("code", {}, oneLine(sample.sample_id)));
  const actions = make("div", { class: "actions" },
    make("button", { type: "button", class: "back", onclick: close }, "← List"),
    make("button", { type: "button", onclick: () => open(place - 1), disabled: place <= 0, title: "k" }, "‹ Previous"),
    make("button", { type: "button", onclick: () => open(place + 1), disabled: place >= shown.length - 1, title: "j" }, "Next ›"),
    make("button", { type: "button", id: "mark", "aria-pressed": String(isMarked), onclick: toggleMark, title: "x" }, isMarked ? "☑ Marked" : "☐ Mark"),
    make("button", { type: "button", id: "copy", onclick: copyCase, title: "c" }, "Copy as a test case"),
    sample.before?.text || sample.before?.prompt !== undefined ? make("button", { type: "button", id: "marks", "aria-pressed": String(state.marks), onclick: toggleMarks, title: "d" }, "Mark differences") : null);
  const gold = sample.choices && sample.gold_index ? null : section("Correct", (sample.gold || []).map((text) => block(text)));
  target.replaceChildren(...[make("div", { class: "head" }, title, actions), promptPart(sample), choicePart(sample), gold, answerPart(sample), scorePart(sample), costPart(sample)].filter(Boolean));
  target.scrollTop = 0;
}

function toggleMark() {
  const at = index();
  if (at < 0) return;
  const place = shown[at];
  if (!marked.delete(place)) marked.add(place);
  const focused = document.activeElement?.id;
  refresh();
  detail(samples[place]);
  if (focused === "mark") $("mark").focus();
  say(marked.has(place) ? "Marked" : "No longer marked");
}

function toggleMarks() {
  state.marks = !state.marks;
  const at = index();
  if (at >= 0) { detail(samples[shown[at]]); $("marks")?.focus(); }
  remember();
}

// ---- what leaves the page

/** A sample as it can be used elsewhere, with exact texts. */
function record(sample) {
  const roles = (list) => list.map(([role, content]) => ({ role, content }));
  const { question, answer, earlier, text, head, tail, value, valueBefore, loss, right, failed, cut, confidence, flip, examples, turns: asked, ...rest } = sample;
  return { eval: page.eval, model: page.model, materialized_at: page.materialized_at, ...rest, messages: roles([...examples, ...(asked || [])]), prompt: promptOf(sample), metric: metric?.metric, value, flip: ["worse", null, "better"][flip + 1] };
}

function testCase(sample) {
  const { sample_id, sample_name, subject, messages, prompt, choices, gold, gold_index, texts_cut } = record(sample);
  const answered = { model: page.model, answer: sample.answer, scores: sample.now.scores, error: sample.now.error };
  return { eval: page.eval, sample_id, sample_name, subject, messages, prompt, choices, gold, gold_index, texts_cut, answered };
}

async function hand(text, what, file) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch { // a frame may refuse the clipboard
    offer(what, text, file);
  }
}

function copyCase() {
  const at = index();
  if (at >= 0) hand(JSON.stringify(testCase(samples[shown[at]]), null, 2), "Test case", "test_case.json");
}

function exportAll() {
  const places = marked.size ? [...marked].sort((a, b) => a - b) : shown;
  const escape = (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"); // some readers end a line there
  const text = places.map((place) => JSON.stringify(record(samples[place])).replace(/[\u0085\u2028\u2029]/g, escape) + "\n").join("");
  offer(`${count(places.length)} samples as JSONL`, text, "samples.jsonl");
}

/** Shows a text to copy or download. A frame may refuse both, so that the text is in a field, selected. */
function offer(title, text, file) {
  const field = make("textarea", { readonly: true, rows: "12", "aria-label": title, spellcheck: "false" });
  field.value = text.slice(0, MOST_IN_FIELD);
  const address = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  const body = [
    make("p", {}, make("a", { href: address, download: file, class: "button", id: "download" }, `Download ${file}`), " ",
      make("span", { class: "quiet" }, "Where a frame does not allow that, copy the text:")),
    field,
    text.length > MOST_IN_FIELD ? make("p", { class: "quiet" }, `The field has the first ${count(MOST_IN_FIELD)} of ${count(text.length)} characters; the file has all.`) : null,
  ];
  show(title, body);
  field.focus();
  field.select();
  $("dialog").addEventListener("close", () => URL.revokeObjectURL(address), { once: true });
}

function show(title, body) {
  $("dialog-title").textContent = title;
  $("dialog-body").replaceChildren(...body.filter(Boolean));
  if (!$("dialog").open) $("dialog").showModal();
}

function help() {
  const keys = [["j, ↓", "next sample"], ["k, ↑", "previous sample"], ["f", "the samples that became worse, better, all"], ["/", "search"], ["x", "mark the sample for an export"],
    ["c", "copy the sample as a test case"], ["d", "mark the differences of the answers, or not"], ["l", "copy a link to this view"], ["Escape", "back to the list"], ["?", "these keys"]];
  show("Keys", [make("dl", { class: "keys" }, keys.map(([key, what]) => make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, what))))]);
}

let silence = 0;
function say(text) {
  $("said").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { $("said").textContent = ""; }, 2500);
}

// ---- the view and its address

function hash() {
  const pairs = Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]).map(([name, value]) => [name, String(value)]);
  return pairs.length ? "#" + new URLSearchParams(pairs) : "";
}

let written = null;
function remember() {
  written = hash();
  try {
    history.replaceState(null, "", written || location.pathname + location.search);
  } catch { // a frame without an origin
    try { location.hash = written; } catch { /* the view has no address here */ }
  }
}

function restore() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(DEFAULTS)) state[name] = given.has(name) ? given.get(name) : DEFAULTS[name];
  state.marks = String(state.marks) !== "false";
  score();
  for (const [id, name] of FIELDS) $(id).value = state[name];
  if (metric) $("metric").value = metric.metric;
  refresh();
  const place = index();
  if (state.id && place >= 0) open(place);
  else if (shown.length && !matchMedia("(max-width: 820px)").matches) open(0);
  else if (!shown.length) empty();
}

function empty() {
  $("detail").replaceChildren(make("p", { class: "quiet nothing" }, samples.length ? "No sample passes these filters." : "The result has no samples."));
}

const FIELDS = [["query", "q"], ["metric", "metric"], ["subject", "subject"], ["sort", "sort"], ["shortest", "from"], ["longest", "to"], ["lowest", "low"], ["highest", "high"]];

/** After a change of the filters: the list from its start, and its first sample. */
function change() {
  score();
  refresh();
  $("list").scrollTop = 0;
  if (!shown.length) { state.id = ""; empty(); remember(); }
  else if (document.body.classList.contains("open")) open(Math.max(0, index()));
  else remember();
}

function setShow(kind) {
  state.show = kind;
  if (kind === "worse" || kind === "better") state.id = "";
  change();
}

function nextFlips() {
  const order = ["worse", "better", ""].filter((kind) => kind === "" || !$("show-" + kind).hidden);
  setShow(order[(order.indexOf(state.show) + 1) % order.length]);
}

function keys(event) {
  const isTyping = event.target.closest?.("input, textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
  if (event.key === "Escape") {
    event.preventDefault(); // a browser would clear the field, and not tell it
    if (isTyping) $("list").focus();
    else close();
    return;
  }
  if (isTyping) return;
  const isList = document.activeElement === $("list") || document.activeElement === document.body;
  const actions = {
    j: () => open(index() + 1), k: () => open(index() - 1), f: nextFlips, x: toggleMark, c: copyCase, d: toggleMarks, l: copyLink, "?": help,
    "/": () => { $("query").focus(); $("query").select(); },
    ...(isList ? { ArrowDown: () => open(index() + 1), ArrowUp: () => open(index() - 1), Home: () => open(0), End: () => open(shown.length - 1),
      Enter: () => open(Math.max(0, index()), { focus: true }) } : {}),
  };
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
}

function copyLink() {
  remember();
  hand(location.href.split("#")[0] + hash(), "Link", "link.txt");
}

/** A name as a shell reads it. */
const second = (text) => text.slice(0, 19); // for the command, a second means its end
const quoted = (name) => (/^[\w@%+=:,./-]+$/.test(name) ? name : oneLine(`'${name.replaceAll("'", "'\\''")}'`));

function heading() {
  $("name").replaceChildren(make("span", {}, oneLine(page.eval)), " · ", make("span", {}, oneLine(page.model)));
  const own = page.metrics.find((each) => each.is_headline) || page.metrics.find((each) => each.metric === page.headline);
  const now = own?.now, before = own?.before;
  const parts = [];
  if (now) {
    parts.push(oneLine(own.metric), " ", make("b", {}, fixed(now.value)));
    if (isNumber(now.ci_low)) parts.push(make("span", { class: "quiet" }, ` (${fixed(now.ci_low)} to ${fixed(now.ci_high)})`));
    if (before && isNumber(before.value) && before.n !== now.n) { // the difference would be that of the samples, too
      parts.push(make("span", { class: "quiet" }, ` of ${count(now.n)} samples; before ${fixed(before.value)} of ${count(before.n)}`));
    } else if (before && isNumber(before.value) && isNumber(now.value)) {
      const change = now.value - before.value;
      const kind = change === 0 || own.higher_is_better === null ? "" : (change > 0) === own.higher_is_better ? "good" : "bad";
      parts.push(" ", make("b", { class: kind }, change === 0 ? "unchanged" : `${fixed(change, true)} ${kind === "bad" ? "▼" : kind === "good" ? "▲" : ""}`), make("span", { class: "quiet" }, ` from ${fixed(before.value)}`));
    }
    if (now.n_errors) parts.push(make("span", { class: "bad" }, ` · ${count(now.n_errors)} errors`));
  }
  $("score").replaceChildren(...parts);
  const names = { data: "the data", prompt: "the prompts", model: "the model", metric: "a metric" };
  const against = page.against;
  const differs = against?.differs.length ? against.differs.map((each) => names[each] || each).join(", ") : "no version";
  $("compared").textContent = `${time(page.materialized_at)}, ${count(page.total)} samples; ` +
    (against ? `compared with ${oneLine(against.model)} of ${time(against.materialized_at)}: ${differs} ${against.differs.length > 1 ? "differ" : "differs"}` : "there is no earlier result to compare with");
  const notes = page.notes.map((text) => make("p", {}, oneLine(text)));
  if (page.total > samples.length) notes.unshift(make("p", {}, `This page holds ${count(samples.length)} of ${count(page.total)} samples: flipped ones and errors first, then a random part of the others. All of them: `,
    make("code", {}, ["eval-dagster samples", quoted(page.eval), quoted(page.model), "--at", second(page.materialized_at),
      ...(against ? ["--against", quoted(`${against.model}@${second(against.materialized_at)}`)] : []), "--all"].join(" "))));
  $("notes").replaceChildren(...notes);
  $("notes").hidden = !notes.length;
}

function controls() {
  $("shows").replaceChildren(...KINDS.map(([kind, word, sign]) => make("button", { type: "button", id: "show-" + kind, class: "chip " + kind, onclick: () => setShow(state.show === kind ? "" : kind) },
    sign ? make("span", { "aria-hidden": "true" }, sign + " ") : null, word + " ", make("span", { class: "number" }))));
  const options = (id, pairs) => $(id).replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
  const scored = page.metrics.filter((each) => each.has_scores);
  options("metric", scored.map((each) => [each.metric, oneLine(each.metric)]));
  const subjects = [...new Set(samples.map((each) => each.subject).filter(Boolean))].sort();
  options("subject", [["", "all"], ...subjects.map((each) => [each, oneLine(each)])]);
  const has = { cost: (each) => isNumber(each.now.cost), confident: (each) => each.confidence !== null, regression: (each) => each.before, tokens: (each) => each.now.output_tokens, latency: (each) => each.now.latency_s };
  options("sort", Object.entries(SORTS).filter(([name]) => !has[name] || samples.some(has[name])).map(([name, [text]]) => [name, text]));
  $("subject").closest("label").hidden = !subjects.length;
  $("metric").closest("label").hidden = scored.length < 2;
  $("confidences").hidden = !samples.some((each) => each.confidence !== null);
  for (const [id, name] of FIELDS) $(id).addEventListener("input", () => { state[name] = id === "metric" && $(id).value === page.headline ? "" : $(id).value; change(); });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("export").addEventListener("click", exportAll);
  $("link").addEventListener("click", copyLink);
  $("help").addEventListener("click", help);
  $("dialog-close").addEventListener("click", () => $("dialog").close());
  let waiting = false;
  $("list").addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }, { passive: true });
  const wide = matchMedia("(min-width: 821px)"), fit = () => { $("more").open = wide.matches; draw(); };
  wide.addEventListener("change", fit);
  fit();
  addEventListener("resize", draw);
  addEventListener("keydown", keys);
  addEventListener("hashchange", () => { if (location.hash !== written) restore(); });
}

async function start() {
  try {
    page = await read();
  } catch (error) {
    document.body.replaceChildren(make("p", { class: "broken", role: "alert" }, `This page cannot be read (${error.message}). It needs a browser of 2023 or later; the samples are in the lake: eval-dagster sql scores`));
    return;
  }
  samples = page.samples.map(unpack);
  heading();
  controls();
  restore();
  document.body.classList.add("ready");
  setTimeout(prepareSearch, 50);
}

start();
