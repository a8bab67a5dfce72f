// Changes: what the flow would change on its clusters, what differs, and who changed what.
import { Badge, Command, Problem, Search, Table, api, count, html, quoted, time, useAnswer, useState } from "/ui/static/kit.js";

const TOP = 100;

const Rows = ({ name, columns, rows, matching, empty }) => html`
  <${Table} caption=${name} columns=${columns} rows=${rows} empty=${empty} />
  ${matching > rows.length && html`<p class="quiet">${count(matching - rows.length)} more; search to find them.</p>`}`;

/** A report of rows of words, with counts of each kind. */
function Words({ flow, kind, title, text, nothing, columns }) {
  const [search, setSearch] = useState("");
  const { data, error } = useAnswer(() => api.report(flow, kind, { top: TOP, search }), [flow.name, search], 30000);
  const kinds = Object.entries(data?.counts || {});
  return html`<section class="card" aria-label=${title}>
    <header><h2>${title}</h2>${data && (kinds.length
      ? kinds.map(([each, number]) => html`<${Badge} tone="warn">${each}: ${count(number)}<//>`)
      : html`<${Badge} tone=${data.unknown.length ? "warn" : "good"}>${data.unknown.length ? "not everything could be checked" : nothing}<//>`)}</header>
    <p class="quiet">${text}</p>
    <${Problem} error=${error} />
    ${!data && !error && html`<p class="quiet">Reading both clusters...</p>`}
    ${data && html`
      ${kinds.length > 0 && html`<${Search} label=${`Search ${title.toLowerCase()}`} value=${search} onSearch=${setSearch} />
      <${Rows} name=${title} rows=${data.rows} matching=${data.matching} empty="No row contains this text."
        columns=${columns.map((column, index) => [column, (row) => row[index]])} />`}
      ${data.unknown.map((each) => html`<${Problem} error=${`Not checked: ${each}`} />`)}
      ${kind === "plan" && data.notes.slice(0, 10).map((each) => html`<p class="quiet">Note: ${each}</p>`)}
      <${Command} text=${data.command} />
      <p class="quiet">As of ${time(data.at_ms)}.</p>`}
  </section>`;
}

const tone = (entry) => (entry.status >= 400 || entry.action.startsWith("partition-") ? "bad" : "quiet");

function Audit({ flow }) {
  const [search, setSearch] = useState("");
  const { data, error } = useAnswer(() => api.report(flow, "audit", { top: TOP, search }), [flow.name, search], 5000);
  const url = `${location.origin}${flow.prefix}`;
  return html`<section class="card" aria-label="Audit">
    <header><h2>Who did what, and when</h2>${data?.dropped > 0 && html`<${Badge} tone="bad">${count(data.dropped)} entries were lost<//>`}</header>
    <${Problem} error=${error} />
    ${data && !data.enabled && html`<p>Nothing is recorded. Set <code>audit.enable = true</code> in the worker's file and restart it.</p>`}
    ${data?.enabled && html`
      <${Search} label="Search the newest entries" value=${search} onSearch=${setSearch} />
      <${Table} caption="Audit" rows=${data.entries}
        empty=${search ? `None of the newest ${count(data.searched)} entries contains this text.` : "Nothing has been recorded yet."}
        columns=${[
          ["When", (entry) => time(entry.at_ms)],
          ["Who", (entry) => entry.who],
          ["What", (entry) => entry.what],
          ["How", (entry) => html`${entry.how} ${tone(entry) === "bad" && html`<${Badge} tone="bad">${entry.status >= 400 ? "refused" : "stopped"}<//>`}`],
        ]} />
      <${Command} text=${`heliograph connectors audit ${quoted(flow.connectors.source)} --rest ${quoted(url)}`} />
      <p class="quiet">From topic ${data.topic}. ${data.waiting > 0 && `${count(data.waiting)} entries wait to be written.`}</p>`}
  </section>`;
}

export default function Changes({ flow }) {
  return html`<h1>Changes of ${flow.name}</h1>
    <${Words} flow=${flow} kind="plan" title="Plan" nothing="nothing to change"
      text="What the flow changes on its clusters at its next look: topics, partitions, settings, ACLs."
      columns=${["Change", "Cluster", "What", "How"]} />
    <${Words} flow=${flow} kind="drift" title="Drift" nothing="no differences"
      text="Differences that the flow leaves, because someone made them or a setting excludes them."
      columns=${["Difference", "Cluster", "What", "How"]} />
    <${Audit} flow=${flow} />`;
}
