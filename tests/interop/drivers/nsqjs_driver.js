// Drives nsqjs, the official Node client. See conversation.py for the words.
'use strict'

const fs = require('fs')
const readline = require('readline')

const nsq = require('nsqjs')
const {NSQDConnection} = require('nsqjs/lib/nsqdconnection')

const options = {
  tcp_address: '',
  lookupd_http_addresses: [],
  channel: '',
  max_in_flight: 1,
  heartbeat_interval_ms: 30000,
  msg_timeout_ms: 60000,
  single: [],
  batch: [],
  deferred: [],
  defer_ms: 0,
  auth_secret: '',
  tls_ca_file: '',
  compression: '',
  ...JSON.parse(process.argv[2]),
}
const separator = options.tcp_address.lastIndexOf(':')
const host = options.tcp_address.slice(0, separator)
const port = Number(options.tcp_address.slice(separator + 1))

// TLS and compression, as nsqjs is told of them.
const layers = {
  ...(options.compression && {[options.compression]: true}),
  ...(options.tls_ca_file && {tls: true, ca: fs.readFileSync(options.tls_ca_file)}),
}

function say(event, fields = {}) {
  process.stdout.write(JSON.stringify({event, at: performance.now() / 1000, ...fields}) + '\n')
}

function orderFor(body, attempts) {
  const words = body.toString('latin1').split(' ')
  const numbers = words.slice(1).filter((word) => /^\d+$/.test(word)).map(Number)
  const first = ['requeue', 'hold', 'touch'].includes(words[0]) && attempts === 1
  return words[0] === 'park' || first ? {verb: words[0], numbers} : {verb: 'finish', numbers: []}
}

function publish() {
  const writer = new nsq.Writer(host, port, {
    heartbeatInterval: options.heartbeat_interval_ms / 1000,
    authSecret: options.auth_secret || null,
    ...layers,
  })
  // The reply that nsqjs hands over is an error or nothing: it has checked for OK itself.
  const replyTo = (command, send) =>
    new Promise((resolve) =>
      send((error) => {
        say('published', {command, reply: error ? String(error) : 'OK'})
        resolve()
      })
    )
  const raw = (text) => Buffer.from(text, 'latin1')
  writer.on('error', (error) => say('error', {text: String(error)}))
  writer.on('ready', async () => {
    for (const body of options.single) {
      await replyTo('pub', (done) => writer.publish(options.topic, raw(body), done))
    }
    if (options.batch.length > 0) {
      await replyTo('mpub', (done) => writer.publish(options.topic, options.batch.map(raw), done))
    }
    // deferPublish documents one body but takes only a list (nsqjs 0.13.0).
    for (const body of options.deferred) {
      await replyTo('dpub', (done) =>
        writer.deferPublish(options.topic, [raw(body)], options.defer_ms, done)
      )
    }
    writer.close()
  })
  writer.connect()
}

function consume() {
  const parked = []

  // nsqjs has no heartbeat event, so look at what it answers them with.
  const write = NSQDConnection.prototype.write
  NSQDConnection.prototype.write = function (data) {
    if (String(data) === 'NOP\n') say('heartbeat')
    return write.call(this, data)
  }

  const reader = new nsq.Reader(options.topic, options.channel, {
    nsqdTCPAddresses: options.tcp_address ? [options.tcp_address] : [],
    lookupdHTTPAddresses: options.lookupd_http_addresses,
    lookupdPollInterval: 1,
    maxInFlight: options.max_in_flight,
    heartbeatInterval: options.heartbeat_interval_ms / 1000,
    messageTimeout: options.msg_timeout_ms,
    authSecret: options.auth_secret || null,
    ...layers,
  })
  const touch = (message, count, everyMs) => {
    if (count === 0) return message.finish()
    message.touch()
    setTimeout(touch, everyMs, message, count - 1, everyMs)
  }
  reader.on('error', (error) => say('error', {text: String(error)}))
  reader.on('message', (message) => {
    say('message', {body: message.body.toString('latin1'), attempts: message.attempts})
    const {verb, numbers} = orderFor(message.body, message.attempts)
    if (verb === 'finish') message.finish()
    else if (verb === 'requeue') message.requeue(numbers[0], false)
    else if (verb === 'touch') touch(message, ...numbers)
    else if (verb === 'park') parked.push(message)
  })
  reader.connect()

  const input = readline.createInterface({input: process.stdin})
  input.on('line', () => parked.splice(0).forEach((message) => message.finish()))
  input.on('close', () => {
    reader.close()
    process.exit(0)
  })
}

if (options.mode === 'publish') publish()
else consume()
