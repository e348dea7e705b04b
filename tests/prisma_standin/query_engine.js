#!/usr/bin/env node
// A stand-in for Prisma's native query engine, for tests alone: the same engine as WebAssembly, which npm has, behind the
// native engine's HTTP interface. Prisma's Python client asks in GraphQL; the WebAssembly engine speaks Prisma's JSON
// protocol, so requests and answers are translated. Run as the native engine is: query_engine.js -p PORT.
'use strict';

const VERSION = '393aa359c9ad4a4bb28630fb5613f9c281cde053'; // of Prisma 5.17.0, as the client expects

if (process.argv.includes('--version')) {
  console.log(`query-engine ${VERSION}`);
  process.exit(0);
}

const fs = require('fs');
const http = require('http');
const { bindAdapter } = require('@prisma/driver-adapter-utils');
const { PrismaPg } = require('@prisma/adapter-pg');
const { parse, Kind } = require('graphql');
const { Pool } = require('pg');
const wasm = require('@prisma/client/runtime/query_engine_bg.postgresql.js');

// A longer name before its beginning: fields are named ACTION + MODEL.
const ACTIONS = [
  'findUniqueOrThrow', 'findFirstOrThrow', 'findUnique', 'findFirst', 'findMany', 'createOne', 'createManyAndReturn',
  'createMany', 'updateOne', 'updateMany', 'deleteOne', 'deleteMany', 'upsertOne', 'aggregate', 'groupBy', 'queryRaw',
  'executeRaw',
];
const AWAY = /ECONNREFUSED|terminat|timeout|External error|GenericJs|external connector/i;

// --- GraphQL to the JSON protocol ---

function readValue(node) {
  switch (node.kind) {
    case Kind.STRING: case Kind.ENUM: case Kind.BOOLEAN: return node.value;
    case Kind.NULL: return null;
    case Kind.INT: return Number.isSafeInteger(Number(node.value)) ? Number(node.value) : { $type: 'BigInt', value: node.value };
    case Kind.FLOAT: return Number(node.value);
    case Kind.LIST: return node.values.map(readValue);
    case Kind.OBJECT: return readNamed(node.fields);
    default: throw new Error(`GraphQL ${node.kind} is not translated`);
  }
}

const readNamed = (nodes) => Object.fromEntries((nodes || []).map((node) => [node.name.value, readValue(node.value)]));

function readSelection(set) {
  const read = (field) => (field.selectionSet || (field.arguments || []).length
    ? { arguments: readNamed(field.arguments), selection: readSelection(field.selectionSet) } : true);
  return Object.fromEntries((set ? set.selections : []).map((field) => [field.name.value, read(field)]));
}

function translateQuery(text, jsonFields) {
  const field = parse(text, { noLocation: true }).definitions[0].selectionSet.selections[0];
  const action = ACTIONS.find((name) => field.name.value.startsWith(name));
  const modelName = field.name.value.slice(action.length);
  const given = readNamed(field.arguments);
  const query = {
    arguments: modelName ? tagJson(given, jsonFields[modelName]) : given,
    selection: readSelection(field.selectionSet),
  };
  return modelName ? { action, modelName, query } : { action, query };
}

// Texts for columns of type Json carry that type in the JSON protocol.
function tagJson(value, columns) {
  if (Array.isArray(value)) return value.map((item) => tagJson(item, columns));
  if (!value || typeof value !== 'object' || value.$type) return value;
  const tag = (item) => (typeof item === 'string' ? { $type: 'Json', value: item } : item);
  const tagFilter = (filter) => Object.fromEntries(Object.entries(filter).map(
    ([name, item]) => [name, ['set', 'equals', 'not'].includes(name) ? tag(item) : item],
  ));
  const isFilter = (item) => item && typeof item === 'object' && !Array.isArray(item) && !item.$type;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [
    name, !columns || !columns.has(name) ? tagJson(item, columns) : isFilter(item) ? tagFilter(item) : tag(item),
  ]));
}

function listJsonFields(datamodel) {
  const models = datamodel.matchAll(/model\s+(\w+)\s*\{([\s\S]*?)\n\}/g);
  const list = (body) => new Set([...body.matchAll(/^\s*(\w+)\s+Json(?:\?|\s|$)/gm)].map((match) => match[1]));
  return Object.fromEntries([...models].map((match) => [match[1], list(match[2])]));
}

// --- The JSON protocol to what the native engine answers ---

function untag(value) {
  if (Array.isArray(value)) return value.map(untag);
  if (!value || typeof value !== 'object') return value;
  if ('$type' in value) return value.$type === 'BigInt' ? Number(value.value) : value.value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, untag(item)]));
}

function translateAnswer(answer) {
  if (!answer.data) return answer;
  const [[name, value]] = Object.entries(answer.data);
  return { ...answer, data: { result: name.startsWith('queryRaw') ? value : untag(value) } };
}

function buildError(error) {
  const text = String((error && error.message) || error);
  const [message, code] = AWAY.test(text) ? ["Can't reach database server", 'P1001'] : [text, 'P2010'];
  return { errors: [{ error: text, user_facing_error: { is_panic: false, message, error_code: code, meta: {} } }] };
}

// The adapter refuses columns of some types, such as name[]: such a query goes to Postgres as it is.
async function queryDirectly(pool, { query, parameters }) {
  const { fields, rows } = await pool.query(query, JSON.parse(parameters || '[]'));
  const columns = fields.map((field) => field.name);
  const types = columns.map((name) => nameType((rows[0] || {})[name]));
  return { data: { result: { columns, types, rows: rows.map((row) => columns.map((name) => row[name])) } } };
}

function nameType(value) {
  if (value === null || value === undefined || typeof value === 'string') return 'string';
  if (typeof value === 'number') return Number.isInteger(value) ? 'int' : 'double';
  if (typeof value === 'boolean') return 'bool';
  if (Array.isArray(value)) return 'string-array';
  return value instanceof Date ? 'datetime' : 'json';
}

// --- The server ---

function findUrl() {
  const overrides = JSON.parse(process.env.OVERWRITE_DATASOURCES || '[]');
  return new URL((overrides[0] && overrides[0].url) || process.env.DATABASE_URL);
}

async function startEngine(datamodel) {
  const url = findUrl();
  const max = Number(url.searchParams.get('connection_limit') || 10);
  url.search = '';
  const pool = new Pool({ connectionString: url.toString(), max, connectionTimeoutMillis: 60_000 });
  pool.on('error', () => {}); // a connection that was idle when Postgres went away
  const module = new WebAssembly.Module(
    fs.readFileSync(require.resolve('@prisma/client/runtime/query_engine_bg.postgresql.wasm')),
  );
  wasm.__wbg_set_wasm(new WebAssembly.Instance(module, { './query_engine_bg.js': wasm }).exports);
  const options = {
    datamodel, env: process.env, logQueries: false, ignoreEnvVarErrors: true, datasourceOverrides: {}, logLevel: 'error',
    configDir: '.', engineProtocol: 'json',
  };
  const engine = new wasm.QueryEngine(options, () => {}, bindAdapter(new PrismaPg(pool)));
  await engine.connect('{}');
  return { engine, pool };
}

async function answer({ engine, pool }, jsonFields, request, body) {
  if (request.url === '/status') return '{"status": "ok"}';
  if (request.url.startsWith('/metrics')) return '{"counters": [], "gauges": [], "histograms": []}';
  if (request.url === '/transaction/start') return engine.startTransaction(body, '{}');
  const ending = request.url.match(/^\/transaction\/([^/]+)\/(commit|rollback)/);
  if (ending) return (await engine[`${ending[2]}Transaction`](ending[1], '{}')) || '{}';
  const transaction = request.headers['x-transaction-id'];
  const asked = JSON.parse(body);
  if (asked.batch) {
    const batch = asked.batch.map((item) => translateQuery(item.query, jsonFields));
    const sent = JSON.stringify({ batch, transaction: asked.transaction ? {} : undefined });
    const result = JSON.parse(await engine.query(sent, '{}', transaction));
    if (result.batchResult) result.batchResult = result.batchResult.map(translateAnswer);
    return JSON.stringify(result);
  }
  const query = translateQuery(asked.query, jsonFields);
  const text = await engine.query(JSON.stringify(query), '{}', transaction);
  const result = JSON.parse(text);
  if (result.errors && !transaction && query.action === 'queryRaw' && text.includes('Unknown')) {
    return JSON.stringify(await queryDirectly(pool, query.query.arguments));
  }
  return JSON.stringify(result.errors && AWAY.test(text) ? buildError(text) : translateAnswer(result));
}

async function main() {
  const port = Number(process.argv[process.argv.indexOf('-p') + 1]);
  const datamodel = fs.readFileSync(process.env.PRISMA_DML_PATH, 'utf8');
  const jsonFields = listJsonFields(datamodel);
  const started = await startEngine(datamodel);
  const server = http.createServer((request, response) => {
    let body = '';
    request.setEncoding('utf8');
    request.on('data', (part) => { body += part; });
    request.on('end', async () => {
      const text = await answer(started, jsonFields, request, body).catch((error) => JSON.stringify(buildError(error)));
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(text);
    });
  });
  server.listen(port, '127.0.0.1');
  server.keepAliveTimeout = 65_000;
  for (const name of ['SIGINT', 'SIGTERM']) process.on(name, () => process.exit(0));
}

main().catch((error) => {
  console.error('the stand-in of the query engine does not start:', error);
  process.exit(1);
});
