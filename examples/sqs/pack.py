"""A worker that packs orders: it writes each into the customer's book, and sends it on to be shipped.

    python3 pack.py ENDPOINT ORDERS-URL SHIPMENTS-URL BOOKS NAME

It may be killed anywhere. An order that it has not deleted comes again: the book has it already, or has not; and the
queue of shipments has it already, by its deduplication id, or has not."""
import fcntl
import json
import os
import sys
import threading
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

endpoint, orders, shipments, books, name = sys.argv[1:]
sqs = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x",
                   aws_secret_access_key="x", config=Config(read_timeout=10, retries={"max_attempts": 1}))


def write(customer, number):
    """Writes a line, unless the book has one of the number. The lock is for a worker that was thought dead."""
    with open(os.path.join(books, customer), "a+", encoding="ascii") as book:
        fcntl.flock(book, fcntl.LOCK_EX)
        book.seek(0)
        lines = book.read().splitlines()
        again = any(line.split()[0] == str(number) for line in lines)
        book.write(f"{number} {name}{' again' if again else ''}\n")


def handle(message):
    order = json.loads(message["Body"])
    customer, number = order["customer"], order["number"]
    write(customer, number)
    # The id is the order's, and not the MessageId: an order that comes in two messages within five minutes is shipped
    # once. A worker that must pass on each message has to send the MessageId. See docs/sqs.md.
    sqs.send_message(QueueUrl=shipments, MessageGroupId=customer, MessageDeduplicationId=f"{customer}-{number}",
                     MessageBody=message["Body"])
    sqs.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])


def work():
    print("working", flush=True)
    while True:
        failed = set()  # groups: what follows in them comes again too
        try:
            got = sqs.receive_message(QueueUrl=orders, MaxNumberOfMessages=10, WaitTimeSeconds=5,
                                      AttributeNames=["MessageGroupId"])
        except (BotoCoreError, ClientError):
            time.sleep(0.1)  # the server is away
            continue
        for message in got.get("Messages", []):
            group = message["Attributes"]["MessageGroupId"]
            if group in failed:
                continue
            try:
                handle(message)
            except (BotoCoreError, ClientError):
                failed.add(group)


threading.Thread(target=work, daemon=True).start()
sys.stdin.read()  # ends with whoever has started it
os._exit(0)
