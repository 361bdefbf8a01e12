// The order service: POST /orders with {"customer", "number"} is answered with 201 when the queue has the order.
// An order without a customer or a number is answered with 400.
//
//   node shop.mjs ENDPOINT QUEUE-URL FOLDER-OF-NODE-MODULES PORT
//
// An order that is sent again, because its answer was lost, has the same deduplication id, and is in the queue once.
import { createRequire } from "node:module";
import { createServer } from "node:http";

const [endpoint, QueueUrl, folder, port] = process.argv.slice(2);
const { SQSClient, SendMessageCommand } = createRequire(folder + "/package.json")("@aws-sdk/client-sqs");
const credentials = { accessKeyId: "x", secretAccessKey: "x" };
const sqs = new SQSClient({ endpoint, region: "us-east-1", credentials });

const server = createServer(async (request, response) => {
  let text = "";
  for await (const part of request) text += part;
  try {
    const { customer, number } = JSON.parse(text);
    if (!customer || !Number.isInteger(number) || number < 1) { // all such orders would have one deduplication id
      response.writeHead(400).end("an order has a customer, and a number from 1 on");
      return;
    }
    await sqs.send(new SendMessageCommand({
      QueueUrl, MessageGroupId: customer, MessageDeduplicationId: `${customer}-${number}`, MessageBody: text,
    }));
    response.writeHead(201).end();
  } catch (e) {
    response.writeHead(503).end(String(e)); // the customer tries again
  }
});
server.listen(Number(port), "127.0.0.1", () => console.log("listening", server.address().port));
process.stdin.on("end", () => process.exit(0)).resume(); // ends with whoever has started it
