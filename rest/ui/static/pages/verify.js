// Verify: what `heliograph verify` has compared, and what differs. The comparison itself is a command.
import { Badge, Command, Figure, Problem, Search, Table, api, count, duration, html, quoted, time, useAnswer, useState } from "/ui/static/kit.js";

const REFRESH_MS = 10000;
const TOP = 50;
/** Recreated topics that are named. */
const NAMED = 5;

const places = ({ source_offset: source, target_offset: target }) =>
  [source !== null && `source offset ${source}`, target !== null && `target offset ${target}`].filter(Boolean).join(", ");

function Found({ row, recreated }) {
  const { differences, differences_total: total, explained, undecided, undecided_total: open } = row;
  const isRecreated = recreated.includes(row.topic);
  return html`<div>
    ${isRecreated && html`<${Badge} tone="warn">recreated since<//> `}
    ${isRecreated && !total ? null : total > 0 ? html`<${Badge} tone="bad">${count(total)} ${total === 1 ? "difference" : "differences"}<//>` : html`<${Badge} tone=${row.records ? "good" : "quiet"}>${row.records ? "the same" : "nothing to compare"}<//>`}
    ${differences.length > 0 && html`<details><summary>Which records</summary><ul>${differences.map((one) => html`<li><b>${one.kind}</b>, ${places(one)}: ${one.what}</li>`)}
      ${total > differences.length && html`<li class="quiet">and ${count(total - differences.length)} more: the report of the command names them</li>`}</ul></details>`}
    ${open > 0 && html` <${Badge} tone="warn">${count(open)} undecided<//>
      <details><summary>What no log decides</summary><ul>${undecided.map((one) => html`<li>It looks <b>${one.kind}</b>, ${places(one)}: ${one.what}. Undecided: ${one.undecided}.</li>`)}
      ${open > undecided.length && html`<li class="quiet">and ${count(open - undecided.length)} more: the report of the command names them</li>`}</ul></details>`}
    ${explained.length > 0 && html`<details><summary>Not compared, and why</summary><ul>${explained.map((one) => html`<li>${one.side} offsets ${one.first} to ${one.last}: ${one.reason}${one.detail && ` (${one.detail})`}</li>`)}</ul></details>`}
  </div>`;
}

export default function Verify({ flow, live }) {
  const [search, setSearch] = useState("");
  const { data, error } = useAnswer(() => api.report(flow, "verification", { top: TOP, search }), [flow.name, search], REFRESH_MS);
  const recreated = data?.recreated ?? [];
  const columns = [
    ["Source", (row) => `${row.topic}-${row.partition}`],
    ["Target", (row) => `${row.target_topic}-${row.target_partition}`],
    ["Verified to", (row) => row.verified_to, true],
    ["Records", (row) => count(row.records), true],
    ["Result", (row) => html`<${Found} row=${row} recreated=${recreated} />`],
    ["Compared", (row) => (row.verified_ms > 0 ? time(row.verified_ms) : "not yet")],
  ];
  return html`<h1>Verify</h1>
    <p>Compares what was copied with its source, record by record. The command below does it, and continues where the last
      run ended: put your file in place of <code>mm2.properties</code>.</p>
    <${Command} text=${`heliograph verify mm2.properties --flow ${quoted(`${flow.source}->${flow.target}`)} --report verified.html`} />
    <${Problem} error=${error} />
    ${!data && !error && html`<p class="quiet">Reading the results...</p>`}
    ${data && !data.all && html`<p>Nothing has been compared yet.</p>`}
    ${data?.all > 0 && html`<section class="card">
      <dl class="figures">
        <${Figure} name="Differences" tone=${data.differences ? "bad" : ""}>${count(data.differences)}<//>
        ${data.undecided > 0 && html`<${Figure} name="Undecided">${count(data.undecided)}<//>`}
        <${Figure} name="Records compared">${count(data.records)}<//>
        <${Figure} name="Partitions">${count(data.all)}<//>
        <${Figure} name="Last run">${data.newest_ms > 0 ? `${duration(Math.max(live.at_ms - data.newest_ms, 0))} ago` : "unknown"}<//>
        <${Figure} name="Oldest comparison">${time(data.verified_ms)}<//>
      </dl>
      ${recreated.length > 0 && html`<p>Recreated since at the source or the target, so not verified: ${recreated.slice(0, NAMED).join(", ")}${recreated.length > NAMED && ` and ${count(recreated.length - NAMED)} more`}.</p>`}
      <${Search} label="Topic or partition" value=${search} onSearch=${setSearch} />
      <${Table} caption="Verified partitions" columns=${columns} rows=${data.partitions} empty="No verified partition has this name." />
      <p class="quiet">At most ${TOP}: most differences first, then most undecided records, then those compared the longest ago.</p></section>`}`;
}
