"""What celery does, by kombu's transport for SQS: ENDPOINT ACCESS SECRET. A worker in a thread runs tasks, one of which
fails at first and is retried."""
import sys
import threading
import time
from urllib.parse import quote, urlparse

from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Connection

endpoint, access, secret = urlparse(sys.argv[1]), sys.argv[2], sys.argv[3]
broker = f"sqs://{quote(access, safe='')}:{quote(secret, safe='')}@{endpoint.hostname}:{endpoint.port}"
options = {"region": "us-east-1", "is_secure": False, "wait_time_seconds": 1, "polling_interval": 0.1, "visibility_timeout": 30}

with Connection(broker, transport_options=options) as c:
    queue = c.SimpleQueue("kombu")
    queue.put({"n": 1})
    m = queue.get(timeout=20)
    assert m.payload == {"n": 1}, m.payload
    m.ack()
    queue.close()

app = Celery("tasks", broker=broker, broker_transport_options=options)
app.conf.update(task_default_queue="celery", worker_hijack_root_logger=False, broker_connection_retry=False,
                worker_enable_remote_control=False, task_acks_late=True)
done, lock, tried = set(), threading.Lock(), set()


@app.task(bind=True, max_retries=5)
def work(self, n):
    if n == 3 and n not in tried:
        tried.add(n)
        raise self.retry(countdown=0)
    with lock:
        done.add(n)


with start_worker(app, perform_ping_check=False, pool="threads", concurrency=2, loglevel="ERROR", shutdown_timeout=30):
    for n in range(8):
        work.delay(n)
    until = time.time() + 60
    while len(done) < 8 and time.time() < until:
        time.sleep(0.05)
assert done == set(range(8)) and tried == {3}, done
print("ok")
