// Partitions: a search on the server; those that do not copy come first, then those of greatest lag.
import { Action, Badge, Problem, Search, Table, api, count, duration, html, may, pause, time, useAnswer, useState } from "/ui/static/kit.js";

const REFRESH_MS = 5000;
const [FEW, MANY] = [50, 200];
const STOPS_WITHIN_MS = 60000;

/** Stop the connector, set the offset, and return to its state: offsets can be altered only while it is STOPPED. */
async function setPosition(flow, cluster, row, offset) {
  const path = api.connector(flow);
  const after = { PAUSED: "pause", STOPPED: "stop" }[(await api.get(`${path}/status`)).connector.state] || "resume";
  await api.send("PUT", `${path}/stop`);
  try {
    const until = Date.now() + STOPS_WITHIN_MS;
    const isStopped = ({ connector, tasks }) => connector.state === "STOPPED" && !tasks.length;
    while (!isStopped(await api.get(`${path}/status`))) {
      if (Date.now() > until) throw new Error("The connector has not stopped within a minute. Its offset was not changed.");
      await pause(500);
    }
    const partition = { cluster, topic: row.topic, partition: row.partition };
    await api.send("PATCH", `${path}/offsets`, { offsets: [{ partition, offset: offset === null ? null : { offset } }] });
  } finally {
    await api.send("PUT", `${path}/${after}`);
  }
}

function SetPosition({ flow, cluster, row, done }) {
  const set = (fields) => {
    const text = String(fields.get("offset")).trim();
    if (text && !/^\d+$/.test(text)) throw new Error("Write the offset as a number, or leave it empty.");
    return setPosition(flow, cluster, row, text ? Number(text) : null);
  };
  return html`<${Action} label="Set position" tone="bad" title=${`Set the position of ${row.topic}-${row.partition}?`} run=${set} done=${done}>
    <p>The copy continues after the offset that you set, without further checks: records before it are skipped, and records
      after it are copied, perhaps again.</p>
    <ul>
      <li>Offsets can be altered only while the connector is stopped. This stops <b>all</b> partitions of ${flow.name} for some
        seconds, sets the offset, and resumes them, unless the connector is paused or stopped now.</li>
      <li>A partition of which nothing was copied yet has no offset to alter.</li>
      <li>If its topic was recreated, set on.topic.recreated = restart first.</li>
    </ul>
    <label>Last source offset that counts as copied <input name="offset" inputmode="numeric" placeholder=${row.position > 0 ? row.position - 1 : ""} /></label>
    <p class="quiet">Empty: the offset is removed, and the partition begins like a new one.</p><//>`;
}

const Retry = ({ flow, row, done }) => html`<${Action} label="Retry" title=${`Retry ${row.topic}-${row.partition}?`} done=${done}
  run=${() => api.send("POST", `${api.connector(flow)}/tasks/${row.task}/restart`)}>
  <p>Task ${row.task} restarts, and tries its stopped partitions again. Its other partitions pause for some seconds. Remove the
    cause first, or the partition stops again.</p><//>`;

function Why({ row }) {
  if (!row.reason && !row.advice) return null;
  return html`<span>${row.reason}</span>${row.since_ms && html`<br /><small class="quiet">since ${time(row.since_ms)}</small>`}
    ${row.advice && html`<details><summary>What to do</summary>${row.advice}</details>`}`;
}

function summary({ partitions, found, all }) {
  const shown = partitions.length < found ? `${count(partitions.length)} of ${count(found)} found` : `${count(found)} found`;
  return `${shown} of ${count(all)} partitions: those that do not copy first, then by lag.`;
}

export default function Partitions({ flow, caller }) {
  const [asked, setAsked] = useState({ text: "", state: "", top: FEW });
  const { data, error, reload } = useAnswer(() => api.report(flow, "search", asked), [flow.name, asked.text, asked.state, asked.top], REFRESH_MS);
  const change = (part) => setAsked((before) => ({ ...before, ...part }));
  const isShared = data && new Set(data.partitions.map((row) => row.worker_id)).size > 1;
  const columns = data && [
    ["Source", (row) => `${row.topic}-${row.partition}`],
    ["Target", (row) => row.target_topic && `${row.target_topic}-${row.partition}`],
    ["Lag", (row) => count(row.records), true],
    ["Oldest", (row) => duration(row.ms), true],
    ["State", (row) => html`<${Badge} tone=${row.is_stopped ? "bad" : row.state === "copying" ? "good" : "warn"}>${row.state}<//>`],
    ["Reason and advice", (row) => html`<${Why} row=${row} />`],
    ["Task", (row) => (row.task === null ? "none" : html`${row.task} ${isShared && html`<small>${row.worker_id}</small>`}`)],
    ...(may(caller, "OPERATE") ? [["", (row) => row.is_stopped && html`<div class="buttons">
      ${row.task !== null && html`<${Retry} flow=${flow} row=${row} done=${reload} />`}
      ${may(caller, "ADMIN") && html`<${SetPosition} flow=${flow} cluster=${data.cluster} row=${row} done=${reload} />`}
    </div>`]] : []),
  ];
  return html`<h1>Partitions</h1>
    <div class="card filters">
      <${Search} label="Topic or partition" value=${asked.text} onSearch=${(text) => change({ text })} />
      <label>State <select value=${asked.state} onChange=${(event) => change({ state: event.target.value })}>
        <option value="">all</option>
        ${data && Object.entries(data.states).map(([state, number]) => html`<option value=${state}>${state} (${count(number)})</option>`)}
      </select></label>
    </div>
    <${Problem} error=${error} />
    ${data && !data.is_known && html`<p class="lost">The source does not answer, so lags are unknown.</p>`}
    ${data ? html`<section class="card">
      <p role="status">${summary(data)} ${asked.top === FEW && data.found > FEW && html`<button onClick=${() => change({ top: MANY })}>Show up to ${MANY}</button>`}</p>
      <${Table} caption="Partitions" columns=${columns} rows=${data.partitions} empty="No partition is found." /></section>`
      : html`<p class="quiet">Searching...</p>`}`;
}
