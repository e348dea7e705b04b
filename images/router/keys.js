// Keys of teams, checked before the router, for nginx's njs 0.9: front.conf and keys.conf call these functions.
//
// What each team used is a number of the shared dictionary `team_usage`, by the name that /metrics gives it.
import crypto from 'crypto';

const MINUTE_MS = 60000;

// Bytes of an answer's beginning and end in which its model and its tokens are.
const HEAD_BYTES = 1024;
const TAIL_BYTES = 4096;

// Names in `team_usage`, three of each team and model, of which it has room for 13,000 of the longest: some engines answer with
// whatever `model` a client wrote, and once it were full, every answer with a new name would break off.
const MAX_NAMES = 9000;

// Of one answer: njs keeps these for each request by itself.
let model = '';
let tail = Buffer.alloc(0);

function digest(r) {
    const authorization = r.headersIn['Authorization'] || '';
    const bearer = /^Bearer +(\S+)$/i.exec(authorization);
    const key = bearer ? bearer[1] : r.headersIn['x-api-key'];
    return key ? crypto.createHash('sha256').update(key).digest('hex') : '';
}

// The status that a request is refused with; empty for one that passes.
function refuse(r) {
    if (/^(|\/health|\/health\/liveliness|\/liveness|\/readiness)$/.test(r.variables.route)) {
        return '';
    }
    if (!r.variables.team) {
        return '401';
    }
    const limit = Number(r.variables.team_limit);
    if (!limit || r.method !== 'POST') {
        return '';
    }
    const minute = `${r.variables.team} ${Math.floor(Date.now() / MINUTE_MS)}`;
    return ngx.shared.team_minutes.incr(minute, 1, 0) > limit ? '429' : '';
}

// Seconds until a team's next minute.
function wait(r) {
    return r.variables.refusal === '429' ? `${Math.ceil((MINUTE_MS - (Date.now() % MINUTE_MS)) / 1000)}` : '';
}

function count_refusal(r) {
    if (r.variables.refusal) {
        add(`team_refused_requests_total{team="${r.variables.team}",status="${r.variables.refusal}"}`, 1);
    }
}

// Passes an answer on as it comes, and counts its tokens at its end: an answer that a client gave up is not counted.
function count_tokens(r, data, flags) {
    r.sendBuffer(data, flags);
    if (r.status !== 200 || !r.variables.team || r.method !== 'POST') {
        r.done();
        return;
    }
    model = model || find(/"model": ?"([^"\\]{1,200})"/, data.slice(0, HEAD_BYTES).toString());
    tail = data.length < TAIL_BYTES ? Buffer.concat([tail, data]).slice(-TAIL_BYTES) : data.slice(-TAIL_BYTES);
    if (flags.last) {
        const text = tail.toString();  // a stream may say its tokens several times: the last counts
        const labels = choose_labels(r.variables.team);
        add(`team_answers_total${labels}`, 1);
        add(`team_input_tokens_total${labels}`, Number(find(/[^]*"(?:prompt|input)_tokens": ?([0-9]{1,12})/, text)));
        add(`team_output_tokens_total${labels}`, Number(find(/[^]*"(?:completion|output)_tokens": ?([0-9]{1,12})/, text)));
    }
}

// Those of the answer's model, or of none where there is no room for its name.
function choose_labels(team) {
    const labels = `{team="${team}",model="${model}"}`;
    const usage = ngx.shared.team_usage;
    const is_known = usage.has(`team_answers_total${labels}`) || usage.size() < MAX_NAMES;
    return is_known ? labels : `{team="${team}",model=""}`;
}

// A pattern's first group. A quote within a JSON text has a backslash before it, so no text that a client or a model writes is taken for a field.
function find(pattern, text) {
    const match = pattern.exec(text);
    return match ? match[1] : '';
}

function add(name, number) {
    ngx.shared.team_usage.incr(name, number, 0);
}

function list_usage(r) {
    const lines = ngx.shared.team_usage.items().map(item => `${item[0]} ${item[1]}\n`);
    r.headersOut['Content-Type'] = 'text/plain; version=0.0.4';
    r.return(200, lines.sort().join(''));
}

export default { digest, refuse, wait, count_refusal, count_tokens, list_usage };
