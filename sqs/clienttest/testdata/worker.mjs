// A worker of the ledger, with sqs-consumer: ENDPOINT QUEUE-URL ACCESS SECRET FOLDER. It prints "got BODY MS" for each
// message, reads what to do with it, and prints "deleted BODY" or "kept BODY".
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [endpoint, queueUrl, accessKeyId, secretAccessKey, folder] = process.argv.slice(2);
const require = createRequire(folder + "/package.json");
const { SQSClient } = require("@aws-sdk/client-sqs");
const { Consumer } = require("sqs-consumer");

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const sqs = new SQSClient({ endpoint, region: "us-east-1", credentials: { accessKeyId, secretAccessKey }, maxAttempts: 1 });
let asked = 0, current = null;
const end = (how) => { if (current !== null) console.log(how, current); current = null; };
const consumer = Consumer.create({
  queueUrl, sqs, batchSize: 1, waitTimeSeconds: 1, terminateVisibilityTimeout: true, suppressFifoWarning: true,
  preReceiveMessageCallback: async () => { end("kept"); asked = Date.now(); },
  handleMessage: async (m) => {
    console.log("got", m.Body, Date.now() - asked);
    const { value, done } = await lines.next();
    if (done) process.exit(0);
    current = m.Body;
    if (value !== "handle") throw new Error(value); // gives the message back
    return m;
  },
});
consumer.on("message_processed", () => end("deleted"));
consumer.on("error", () => {});
consumer.on("processing_error", () => {});
consumer.start();
