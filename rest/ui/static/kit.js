// What all pages use: the API client, texts for numbers and times, and small components.
import { html, useEffect, useRef, useState } from "/ui/static/vendor/preact.js";

export { html, useEffect, useRef, useState };

/** A refused request: `status` of HTTP (0: the worker did not answer) and the worker's message. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(method, path, body) {
  let response;
  try {
    const content = body === undefined ? {} : { "content-type": "application/json" };
    response = await fetch(path, {
      method,
      headers: { accept: "application/json", ...content },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, "The worker does not answer.");
  }
  const text = await response.text();
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    // Such as the page of a proxy.
    throw new ApiError(response.status, `The answer (HTTP ${response.status}) is not of the worker. Is a proxy before it?`);
  }
  if (!response.ok) throw new ApiError(response.status, found?.message || `The worker answered ${response.status}.`);
  return found;
}

const queried = (query) => {
  const text = new URLSearchParams(query).toString();
  return text && `?${text}`;
};

/**
 * The worker's API. `get` and `send` take paths from the worker's root. `report` reads a report of a flow's connector:
 * of the source, or of `query.part` (checkpoint, heartbeat). `connector` is the REST path of a flow's connector.
 */
export const api = {
  get: (path) => request("GET", path),
  send: request,
  report: (flow, kind, query = {}) =>
    request("GET", `/ui/api/flows/${encodeURIComponent(flow.name)}/${encodeURIComponent(kind)}${queried(query)}`),
  connector: (flow, part = "source") => `${flow.prefix}/connectors/${encodeURIComponent(flow.connectors[part])}`,
};

const ROLES = ["NONE", "VIEW", "OPERATE", "ADMIN"];

/** An argument of a command, so that a shell takes it as one word. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

/** Whether a caller has a role or a higher one. */
export const may = (caller, role) => ROLES.indexOf(caller?.role) >= ROLES.indexOf(role);

/** Address of a page of a flow; without a page, of the flow itself. */
export const hrefOf = (flow, page = "") => `#/flow/${encodeURIComponent(flow.name)}${page && `/${page}`}`;

// -- texts -------------------------------------------------------------------------------------------------------

const UNKNOWN = "unknown";
const isUnknown = (value) => value === null || value === undefined || value < 0;

/** `1,234`, or `12.3 million` above a million; -1 and null are unknown. */
export function count(value) {
  if (isUnknown(value)) return UNKNOWN;
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} billion`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} million`;
  return Math.round(value).toLocaleString("en-US");
}

export function size(bytes) {
  if (isUnknown(bytes)) return UNKNOWN;
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

export function duration(ms) {
  if (isUnknown(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 120) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

/** A source or target partition, which reports write as `[topic, partition]`. */
export const partitionName = (one) => (Array.isArray(one) ? one.join("-") : String(one));

/** The tone of a verdict's urgency. */
export const toneOf = (urgency) => ({ error: "bad", warning: "warn", ok: "good" })[urgency] || "quiet";

export const time = (ms) => (isUnknown(ms) ? UNKNOWN : new Date(ms).toLocaleString("sv-SE"));

// -- components --------------------------------------------------------------------------------------------------

const HOLD_MS = 300;

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Whether a dialog is open. */
export const isAsking = () => document.querySelector("dialog[open]") !== null;

/**
 * Read `path()` once, again when one of `deps` changes, and every `everyMs` if given. Returns `{data, error, reload}`;
 * `data` stays while a newer answer is awaited, and while a dialog is open: the row that it is about must stay the same.
 * A page that is not seen reads nothing again.
 */
export function useAnswer(read, deps, everyMs = 0) {
  const [answer, setAnswer] = useState({ data: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    const again = () => {
      if (everyMs && !isOver) timer = setTimeout(() => (document.hidden ? again() : look()), everyMs);
    };
    const look = async () => {
      try {
        const data = await read();
        while (isAsking() && !isOver) await pause(HOLD_MS);
        if (!isOver) setAnswer({ data, error: null });
      } catch (error) {
        if (!isOver) setAnswer((before) => ({ data: before.data, error }));
      }
      again();
    };
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [...deps, round]);
  return { ...answer, reload: () => setRound((before) => before + 1) };
}

/** An error in words; nothing without one. */
export function Problem({ error }) {
  if (!error) return null;
  return html`<p class="problem" role="alert">${error.message || String(error)}</p>`;
}

/** A word in a colour: `tone` is good, warn, bad or quiet. */
export const Badge = ({ tone = "quiet", children }) => html`<span class="badge ${tone}">${children}</span>`;

/** A named figure. */
export const Figure = ({ name, children, tone = "" }) =>
  html`<div class="figure ${tone}"><dt>${name}</dt><dd>${children}</dd></div>`;

/** A table; on a phone each row is a list. `columns`: `[[heading, row => cell, isNumber]]`. */
export function Table({ columns, rows, caption, empty = "Nothing to show." }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map(([name, , isNumber]) => html`<th class=${isNumber ? "number" : ""}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${columns.map(
        ([name, cell, isNumber]) => html`<td class=${isNumber ? "number" : ""} data-name=${name}>${cell(row)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

/** A search box; `onSearch` gets the text when the user pauses. The key / moves to it. */
export function Search({ label, value, onSearch }) {
  const timer = useRef(0);
  const changed = (event) => {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onSearch(text), 200);
  };
  return html`<label class="search"><span>${label}</span>
    <input type="search" data-search value=${value} onInput=${changed} autocomplete="off" spellcheck="false" /></label>`;
}

/** What the verdict on a flow says: its sentence, what else is wrong, what to do, and whether a failover could start. */
export function Verdict({ flow, brief = false }) {
  const { verdict } = flow.overview;
  const here = `--rest ${location.origin}${flow.prefix}`;
  const actions = brief ? verdict.actions.slice(0, 3) : verdict.actions;
  return html`<p class="verdict">${verdict.sentence}</p>
    ${verdict.also.map((text) => html`<p class="also">${text}</p>`)}
    ${actions.length > 0 && html`<h3>What to do</h3><ul class="actions">${actions.map((one) => html`<li>
      <b>${one.about}</b>: ${one.remedy}${one.command && html`<${Command} text=${one.command.replace("--rest URL", here)} />`}</li>`)}</ul>`}
    <h3>Failover</h3><p>${verdict.failover.sentence}</p>
    ${verdict.verified && html`<h3>Copy</h3><p>${verdict.verified}</p>`}`;
}

export const bytesRate = ({ rates }) => (rates.bytes_per_s === null ? "unknown" : `${size(rates.bytes_per_s)}/s`);

/** Whose rates are not known, and what is shown instead. */
export function RatesNote({ rates }) {
  if (!rates.silent?.length) return null;
  const names = rates.silent.map((one) => `${one.worker_id}: ${one.reason}`).slice(0, 3);
  return html`<p class="quiet">The rate is that of stored positions over the last minute, because a worker is silent. ${names.join(" ")}</p>`;
}

/** A command with a button that copies it. */
export function Command({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return html`<div class="command"><code>${text}</code>
    <button onClick=${copy} disabled=${!navigator.clipboard}>${copied ? "Copied" : "Copy"}</button></div>`;
}

/**
 * A button whose action is confirmed. `children` explain in the dialog what happens; `run` returns a promise, and its
 * error is shown. `run` gets the fields of the form, a FormData.
 */
export function Action({ label, title, tone = "", run, done, children }) {
  const dialog = useRef(null);
  const [state, setState] = useState({ busy: false, error: null });
  const act = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await run(new FormData(event.target));
      dialog.current.close();
      setState({ busy: false, error: null });
      done?.();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<button class=${tone} onClick=${() => dialog.current.showModal()}>${label}</button>
    <dialog ref=${dialog} aria-label=${title || label}>
      <form method="dialog" onSubmit=${act}>
        <h2>${title || label}</h2>
        ${children}
        <${Problem} error=${state.error} />
        <div class="buttons">
          <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
          <button type="submit" class="main ${tone}" disabled=${state.busy}>${label}</button>
        </div>
      </form>
    </dialog>`;
}
