"""What a program does with boto 2, which speaks the Query protocol of 2012: ENDPOINT ACCESS SECRET. Debian's runs under
Python 3 up to 3.11."""
import sys
from urllib.parse import urlparse

import boto
import boto.sqs
from boto.sqs.connection import SQSConnection
from boto.sqs.message import RawMessage
from boto.sqs.regioninfo import SQSRegionInfo

endpoint, access, secret = urlparse(sys.argv[1]), sys.argv[2], sys.argv[3]
region = SQSRegionInfo(name="us-east-1", endpoint=endpoint.hostname, connection_cls=SQSConnection)
sqs = SQSConnection(access, secret, is_secure=False, port=endpoint.port, region=region)
queue = sqs.create_queue("boto2", 10)
queue.set_message_class(RawMessage)
for i in range(3):
    m = RawMessage()
    m.set_body(f"<m{i} & \u00e9>")
    m.message_attributes = {"k": {"data_type": "String", "string_value": "v"}}
    queue.write(m)
assert queue.count() == 3
got = queue.get_messages(num_messages=10, message_attributes=["All"], attributes="All")
while len(got) < 3:
    got += queue.get_messages(num_messages=10, message_attributes=["All"], attributes="All", wait_time_seconds=1)
assert sorted(m.get_body() for m in got) == [f"<m{i} & \u00e9>" for i in range(3)]
assert got[0].message_attributes["k"]["string_value"] == "v", got[0].message_attributes
assert got[0].attributes["ApproximateReceiveCount"] == "1"
got[0].change_visibility(0)
again = queue.get_messages(wait_time_seconds=5)
assert again[0].id == got[0].id
for m in again + got[1:]:
    queue.delete_message(m)
assert [q.name for q in sqs.get_all_queues(prefix="boto")] == ["boto2"]
assert queue.get_attributes("VisibilityTimeout")["VisibilityTimeout"] == "10"
assert queue.purge()
assert sqs.delete_queue(queue)
assert sqs.lookup("boto2") is None
print("ok")
