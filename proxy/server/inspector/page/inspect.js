"use strict";
// Everything that is shown came from a backend, a model or a client: it becomes text nodes, and never markup.

const POLL_MS = 1500;
const STEP = 250; // events shown at once
const KEPT_ROWS = 2000;
const SIGNS = { valid: "\u2713", incomplete: "\u2026" };

const byId = (id) => document.getElementById(id);
const state = { rows: [], newest: 0, worker: null, paused: false, shown: null, asking: 0 };

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map(asNode));
  return made;
}

const asNode = (child) => (child instanceof Node ? child : document.createTextNode(String(child)));

// --- words

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toFixed(2)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function size(bytes) {
  return bytes < 10240 ? `${bytes} bytes` : bytes < 1048576 ? `${(bytes / 1024).toFixed(0)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`;
}

const when = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

function whenExactly(seconds) {
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

const way = (row) => (row.client_dialect === row.upstream_dialect ? row.client_dialect : `${row.upstream_dialect || "nothing"} \u2192 ${row.client_dialect}`);
const kindOf = (verdict) => (verdict === "valid" ? "good" : verdict === "incomplete" ? "warn" : "bad");

function verdictChip(verdict, count) {
  const sign = SIGNS[verdict] || "\u2717";
  return element("span", { class: `chip ${kindOf(verdict)}` }, `${sign} ${verdict}${count > 1 ? ` \u00d7${count}` : ""}`);
}

function verdictChips(row) {
  const counts = new Map();
  for (const verdict of row.verdicts) counts.set(verdict, (counts.get(verdict) || 0) + 1);
  return [...counts].map(([verdict, count]) => verdictChip(verdict, count));
}

function outcomeChip(row) {
  if (row.outcome === "ok") return null;
  const words = row.outcome === "gone" ? "client left" : `${row.outcome}${row.code ? `: ${row.code}` : ""}`;
  return element("span", { class: `chip ${row.outcome === "gone" ? "warn" : "bad"}` }, words);
}

// --- the list

function matches(row) {
  const verdict = byId("verdict").value;
  const backend = byId("backend").value;
  if (byId("problems").checked && !row.problem) return false;
  if (verdict && !row.verdicts.includes(verdict)) return false;
  if (backend && row.backend !== backend) return false;
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const text = [
    row.model, row.route, row.backend, row.client, row.client_dialect, row.upstream_dialect, row.outcome, row.code,
    row.request_id, row.reask, row.status, ...row.verdicts, ...row.quirks, ...row.repairs, ...row.recovered,
  ].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function rowElement(row) {
  const quirks = row.quirks.length ? element("span", { class: "chip", title: row.quirks.join(", ") }, `${row.quirks.length} quirk${row.quirks.length > 1 ? "s" : ""}`) : null;
  return element(
    "li",
    {},
    element(
      "a",
      { href: `#${row.number}`, "data-number": row.number, "aria-current": state.shown === row.number ? "true" : null },
      element("span", { class: "model" }, row.model),
      element("span", { class: "when" }, when(row.began)),
      element("span", { class: "way" }, `${row.backend} \u00b7 ${way(row)}`),
      element("span", { class: "took" }, duration(row.seconds)),
      element("span", { class: "chips" }, outcomeChip(row), verdictChips(row), quirks, row.verdicts.length || row.outcome !== "ok" ? null : element("span", { class: "chip" }, "no calls")),
    ),
  );
}

function showList() {
  const rows = byId("rows");
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.number : null;
  const shown = state.rows.filter(matches).reverse();
  rows.replaceChildren(...shown.map(rowElement));
  if (focused) {
    const again = rows.querySelector(`a[data-number="${Number(focused)}"]`);
    if (again) again.focus();
  }
  const all = state.rows.length;
  byId("count").textContent = all === 0 ? "No reply has come yet." : shown.length === all ? `${all} repl${all === 1 ? "y" : "ies"}` : `${shown.length} of ${all} replies`;
  choices("verdict", state.rows.flatMap((row) => row.verdicts));
  choices("backend", state.rows.map((row) => row.backend));
}

function choices(id, values) {
  const select = byId(id);
  const chosen = select.value;
  const wanted = ["", ...new Set([...values, ...(chosen ? [chosen] : [])].sort())];
  if (wanted.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  select.replaceChildren(...wanted.map((value) => element("option", { value }, value || "any")));
  select.value = chosen;
}

function tell(words, how) {
  const told = byId("state");
  if (told.textContent !== words) told.textContent = words;
  told.className = `state ${how}`;
}

async function fetched(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (answer.status === 401) {
    location.reload(); // the form
    throw new Error("the token is not taken any more");
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => null);
    throw new Error((said && said.error && said.error.message) || `status ${answer.status}`);
  }
  return answer.json();
}

async function poll() {
  if (!state.paused && !document.hidden) {
    try {
      let more = true;
      while (more) {
        const told = await fetched(`/inspect/replies?after=${state.newest}`);
        if ((state.worker !== null && told.worker !== state.worker) || told.newest < state.newest) {
          Object.assign(state, { rows: [], newest: 0, worker: told.worker });
          continue; // another process, or a new one: what it keeps
        }
        take(told);
        more = told.replies.length > 0 && told.replies[told.replies.length - 1].number < told.newest;
      }
      tell(`Live \u00b7 ${state.rows.length} kept`, "live");
    } catch (error) {
      tell(`Not connected: ${error.message}`, "lost");
    }
  }
  setTimeout(poll, POLL_MS);
}

function take(told) {
  const before = state.rows.length;
  state.worker = told.worker;
  state.newest = told.newest;
  state.rows = [...state.rows, ...told.replies].filter((row) => row.number >= told.oldest).slice(-KEPT_ROWS);
  byId("worker").textContent = ` (process ${told.worker})`;
  if (told.replies.length || state.rows.length !== before || !before) showList();
}

// --- one reply

function fact(name, value) {
  return value === null || value === undefined || value === "" ? [] : [element("div", {}, element("dt", {}, name), element("dd", {}, value))];
}

// Indents JSON without changing a character of it; `segments` are texts, of which one may be marked.
function pretty(segments) {
  const whole = segments.map((segment) => segment.text).join("");
  const wide = whole.length > 48;
  const out = [];
  let depth = 0;
  let inString = false;
  let escaped = false;
  let broke = false;
  for (const segment of segments) {
    let text = "";
    for (const c of segment.text) {
      if (inString) {
        text += c;
        if (escaped) escaped = false;
        else if (c === "\\") escaped = true;
        else if (c === '"') inString = false;
        continue;
      }
      if (broke && (c === " " || c === "\n" || c === "\t" || c === "\r")) continue;
      if (wide && (c === "}" || c === "]")) {
        depth = Math.max(0, depth - 1);
        text += `\n${"  ".repeat(Math.min(depth, 40))}${c}`;
        broke = false;
        continue;
      }
      broke = false;
      text += c;
      if (c === '"') inString = true;
      if (wide && (c === "{" || c === "[" || c === ",")) {
        if (c !== ",") depth += 1;
        text += `\n${"  ".repeat(Math.min(depth, 40))}`;
        broke = true;
      }
    }
    out.push(segment.marked ? element("mark", { class: text.includes("\n") ? "block" : null }, text) : text);
  }
  return element("pre", { tabindex: "0" }, out);
}

function callCard(call, number, turns) {
  const colour = number % 4;
  const place = call.sent_index === null ? "withheld" : `sent as ${call.sent_index}`;
  const where = [turns > 1 ? `attempt ${call.turn + 1}` : "", call.choice ? `choice ${call.choice}` : "", `call ${call.index}`, call.id ? `id ${call.id}` : "no id", place].filter(Boolean).join(" \u00b7 ");
  const card = element(
    "article",
    { class: `card call call${colour}`, "aria-label": `Call ${call.index}: ${call.name}, ${call.verdict}` },
    element("div", { class: "callhead" }, element("b", {}, call.name || "(no name)"), verdictChip(call.verdict, 1), element("span", { class: "quiet" }, where)),
  );
  const marks = [...call.quirks.map((quirk) => element("span", { class: "chip", title: "quirk" }, quirk)), ...call.repairs.map((repair) => element("span", { class: "chip warn", title: "repair" }, `repaired: ${repair}`)), call.format ? element("span", { class: "chip" }, `came as text: ${call.format}`) : null].filter(Boolean);
  if (marks.length) card.append(element("div", { class: "chips" }, marks));
  if (call.error) {
    card.append(element("p", { class: "error" }, `\u2717 ${call.error.rule}${call.error.path ? ` at ${call.error.path}` : ""}: ${call.error.message}`));
  }
  if (call.cut) {
    card.append(element("p", { class: "quiet" }, "Its arguments were too large to keep."));
    return card;
  }
  card.append(element("p", { class: "label" }, call.verdict === "valid" ? "Arguments" : "Arguments, as far as they were put together"), pretty(call.arguments));
  const told = call.fragments.filter((fragment) => fragment.text);
  if (told.length) {
    card.append(element("p", { class: "label" }, `As they came: ${told.length === 1 ? "one fragment" : `${told.length} fragments`}${told.some((f) => f.event) ? ", with the number of the event" : ""}`));
    card.append(element("div", { class: "fragments" }, told.map((fragment) =>
      element("button", { type: "button", title: fragment.event ? `in event ${fragment.event}` : null, onclick: () => goTo(call.turn, fragment.event) }, fragment.text, fragment.event ? element("sup", {}, fragment.event) : null))));
  }
  return card;
}

function goTo(turn, event) {
  if (!event) return;
  const list = document.querySelector(`ol[data-turn="${turn}"]`);
  if (!list) return;
  while (list.children.length < event && list.more) list.more();
  const line = list.children[event - 1];
  if (line) {
    line.scrollIntoView({ block: "center" });
    line.focus();
  }
}

function eventLine(event) {
  const calls = [...new Set(event.calls.map(([call]) => call))];
  const text = element("div", { class: `text${event.text.length > 1200 ? " long" : ""}` }, event.text);
  if (event.text.length > 1200) text.setAttribute("tabindex", "0");
  return element(
    "li",
    { class: calls.length ? `of${calls[0] % 4}` : null, tabindex: "-1" },
    element("div", { class: "at" }, element("b", {}, event.n), `+${duration(event.at_ms / 1000)}`),
    text,
  );
}

function eventList(events, turn, label) {
  const list = element("ol", { class: "events", "data-turn": turn, "aria-label": label });
  const holder = element("div", {}, list);
  let shown = 0;
  const button = element("button", { type: "button", class: "more", onclick: () => list.more() });
  list.more = () => {
    list.append(...events.slice(shown, shown + STEP).map(eventLine));
    shown = Math.min(events.length, shown + STEP);
    button.textContent = `Show ${Math.min(STEP, events.length - shown)} more of ${events.length}`;
    if (shown >= events.length) {
      button.remove();
      list.more = null;
    }
  };
  if (!events.length) return element("p", { class: "quiet" }, "Nothing.");
  holder.append(button);
  list.more();
  return holder;
}

const ENDS = { eof: "ended in order", stopped: "read to its end", reset: "broke off", gone: "the client left" };

function attemptBlock(attempt, turn, turns) {
  const told = [attempt.dialect || "no answer", attempt.status ? `status ${attempt.status}` : "", `${attempt.events.length} events`, size(attempt.bytes), ENDS[attempt.end] || attempt.end, attempt.fault].filter(Boolean);
  const name = turns > 1 ? `From ${attempt.backend}, attempt ${turn + 1}` : `From ${attempt.backend}`;
  return [
    element("h3", {}, name, element("span", { class: "quiet" }, told.join(" \u00b7 "))),
    eventList(attempt.events, turn, name),
  ];
}

function sentence(reply) {
  const calls = reply.verdicts.length;
  const good = reply.verdicts.filter((verdict) => verdict === "valid").length;
  const told = calls === 0 ? "No calls" : good === calls ? `${calls === 1 ? "The call is" : `All ${calls} calls are`} valid` : `${calls - good} of ${calls} call${calls > 1 ? "s" : ""} faulty`;
  const mended = reply.quirks.length ? `, ${reply.quirks.length} quirk${reply.quirks.length > 1 ? "s" : ""} mended` : "";
  return `${told}${mended}.`;
}

function showReply(reply) {
  const turns = reply.attempts.length;
  const cases = reply.attempts.map((attempt, turn) =>
    attempt.dialect ? element("a", { class: "button", href: `/inspect/replies/${reply.number}/case?attempt=${turn}&worker=${reply.worker}`, download: "" }, turns > 1 ? `Case file of attempt ${turn + 1}` : "Download as a case file") : null);
  for (const link of cases.filter(Boolean)) link.title = "wholecall replay FILE judges it again";
  const main = byId("reply");
  main.replaceChildren(
    element("div", { class: "title" }, element("h2", {}, reply.model), element("span", { class: "quiet" }, `${reply.backend} \u00b7 ${way(reply)} \u00b7 ${reply.stream ? "streamed" : "plain"}`), element("div", { class: "actions" }, cases)),
    element("div", { class: "verdictline chips" }, outcomeChip(reply), verdictChips(reply), element("span", {}, sentence(reply))),
    reply.cut ? element("p", { class: "notice" }, "This reply was larger than the inspector keeps of one (inspector.entry_bytes): the end of it is missing here.") : "",
    reply.redacted ? element("p", { class: "notice plain" }, "Values are masked and shapes kept: x stands for a character, 1 for a digit. A number at the end of a mask tells different values apart.") : "",
    element("dl", { class: "facts" },
      fact("Began", whenExactly(reply.began)), fact("Took", duration(reply.seconds)), fact("First byte after", duration(reply.first_byte_s)),
      fact("Calls held for", duration(reply.hold_s)), fact("Status", reply.status || ""), fact("Route", reply.route), fact("Client", reply.client),
      fact("Policy", reply.policy.mode ? `${reply.policy.mode}${reply.policy.mode === "block" ? `, as ${reply.policy.block_as}` : ""}, ${reply.policy.delivery}` : ""),
      fact("Tools", reply.tools.length ? String(reply.tools.length) : ""), fact("tool_choice", reply.tools.length ? `${reply.tool_choice.mode}${reply.tool_choice.names ? `: ${reply.tool_choice.names.join(", ")}` : ""}` : ""),
      fact("Asked again", reply.reask), fact("Request id", element("span", { class: "mono" }, reply.request_id))),
    reply.quirks.length ? element("div", { class: "chips" }, element("span", { class: "quiet" }, "Quirks:"), reply.quirks.map((quirk) => element("span", { class: "chip" }, quirk))) : "",
    element("h3", {}, "Calls"),
    ...(reply.calls.length ? reply.calls.map((call, number) => callCard(call, number, turns)) : [element("p", { class: "quiet" }, "There are none in this reply.")]),
    element("div", { class: "streams" },
      element("section", { class: "stream", "aria-label": "What came" }, reply.attempts.map((attempt, turn) => attemptBlock(attempt, turn, turns)), turns ? "" : element("p", { class: "quiet" }, "No backend was asked.")),
      element("section", { class: "stream", "aria-label": "What was sent" },
        element("h3", {}, "To the client", element("span", { class: "quiet" }, [reply.client_dialect, `${reply.sent.events.length} events`, size(reply.sent.bytes)].join(" \u00b7 "))),
        eventList(reply.sent.events, "sent", "What was sent"))),
  );
  main.scrollTop = 0;
}

async function openReply() {
  const number = Number(location.hash.slice(1));
  if (!Number.isInteger(number) || number <= 0) return;
  const asked = (state.asking += 1);
  state.shown = number;
  for (const link of document.querySelectorAll(".rows a")) {
    if (Number(link.dataset.number) === number) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  try {
    const reply = await fetched(`/inspect/replies/${number}${state.worker === null ? "" : `?worker=${state.worker}`}`);
    if (asked === state.asking) showReply(reply);
  } catch (error) {
    if (asked === state.asking) {
      byId("reply").replaceChildren(element("div", { class: "empty" }, element("h2", {}, "This reply is not here"), element("p", {}, error.message)));
    }
  }
}

function move(event) {
  if ((event.key !== "ArrowDown" && event.key !== "ArrowUp") || !event.target.closest(".rows")) return;
  const links = [...document.querySelectorAll(".rows a")];
  const next = links[links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)];
  if (next) {
    event.preventDefault();
    next.focus();
  }
}

byId("filters").addEventListener("input", showList);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", String(state.paused));
  byId("pause").textContent = state.paused ? "Go on" : "Pause";
  tell(state.paused ? "Paused" : "Live", state.paused ? "" : "live");
});
document.addEventListener("keydown", move);
window.addEventListener("hashchange", openReply);
poll();
openReply();
