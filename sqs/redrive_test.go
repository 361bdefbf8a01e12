package sqs

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRedriveAllowPolicy: a RedriveAllowPolicy that is empty or has an unknown permission is refused. It does not allow
// every queue. The permission byQueue allows the queues of its list, and no others.
func TestRedriveAllowPolicy(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(e *env) {
		dead, orders := e.create("dead"), e.create("orders")
		deadARN, arn := e.attributes(dead)["QueueArn"], e.attributes(orders)["QueueArn"]
		use := object{"QueueUrl": orders, "Attributes": object{
			redrivePolicy: fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, deadARN)}}
		set := func(policy string) object {
			return object{"QueueUrl": dead, "Attributes": object{redriveAllowPolicy: policy}}
		}
		e.call("SetQueueAttributes", set(`{"redrivePermission":"denyAll"}`))
		for _, policy := range []string{
			`{}`, `null`, `[]`, ` `, `""`, `{"redrivePermission":null}`, `{"redrivePermission":""}`,
			`{"redrivePermission":" "}`, `{"redrivePermission":"allowall"}`, `{"redrivePermision":"denyAll"}`,
			`{"redrivePermission":"denyAll","more":1}`, fmt.Sprintf(`{"sourceQueueArns":[%q]}`, arn),
			`{"redrivePermission":"byQueue"}`, `{"redrivePermission":"byQueue","sourceQueueArns":[]}`,
			`{"redrivePermission":"byQueue","sourceQueueArns":null}`,
			`{"redrivePermission":"byQueue","sourceQueueArns":[""]}`,
			`{"redrivePermission":"byQueue","sourceQueueArns":["*"]}`,
			fmt.Sprintf(`{"redrivePermission":"byQueue","sourceQueueArns":[%q,null]}`, arn),
			fmt.Sprintf(`{"redrivePermission":"allowAll","sourceQueueArns":[%q]}`, arn),
			fmt.Sprintf(`{"redrivePermission":"denyAll","sourceQueueArns":[%q]}`, arn),
			`{"redrivePermission":"denyAll"} {"redrivePermission":"allowAll"}`,
		} {
			_, text := e.refused("SetQueueAttributes", set(policy))
			require.Contains(e, text, redriveAllowPolicy, policy)
			_, text = e.refused("SetQueueAttributes", use)
			require.Contains(e, text, "does not allow the queue orders", policy)
		}
		other := fmt.Sprintf(`{"redrivePermission":"byQueue","sourceQueueArns":[%q]}`, deadARN)
		e.call("SetQueueAttributes", set(other))
		e.refused("SetQueueAttributes", use)
		for _, policy := range []string{
			`{"redrivePermission":"allowAll"}`, `{"redrivePermission":"allowAll","sourceQueueArns":[]}`, ``,
			fmt.Sprintf(`{"redrivePermission":"byQueue","sourceQueueArns":[%q,%q]}`, deadARN, arn),
		} {
			e.call("SetQueueAttributes", set(other))
			e.call("SetQueueAttributes", set(policy))
			e.call("SetQueueAttributes", use)
		}
	})
}

// TestStoredRedriveAllowPolicy: an earlier version may have stored a RedriveAllowPolicy that this server refuses. It
// allows no further queue. Queues that already use the dead letter queue continue.
func TestStoredRedriveAllowPolicy(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(e *env) {
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		_, err := e.s.changeRecord(e.Context(), "dead.fifo", func(r *record) error {
			r.Attributes[redriveAllowPolicy] = `{"redrivePermision":"denyAll"}`
			return nil
		})
		require.NoError(e, err)
		e.send(orders, "a", "a1")
		e.die(orders)
		require.Equal(e, "a1", bodies(e.receive(dead)))
		policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":1}`, e.attributes(dead)["QueueArn"])
		_, text := e.refused("CreateQueue", object{"QueueName": "new.fifo",
			"Attributes": object{fifoQueue: "true", redrivePolicy: policy}})
		require.Contains(e, text, "set it again")
		e.call("SetQueueAttributes", object{"QueueUrl": dead, "Attributes": object{redriveAllowPolicy: ""}})
		e.create("new.fifo", redrivePolicy, policy)
	})
}

// TestOwnDeadLetterQueue: a queue is never its own dead letter queue, however the queue is made or changed. The queue
// keeps the policy that it has.
func TestOwnDeadLetterQueue(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		for _, suffix := range []string{"", fifoSuffix} {
			orders, dead := e.create("orders"+suffix), e.create("dead"+suffix)
			policyTo := func(arn any) string {
				return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":1}`, arn)
			}
			set := func(arn any) object {
				return object{"QueueUrl": orders, "Attributes": object{redrivePolicy: policyTo(arn)}}
			}
			e.call("SetQueueAttributes", set(e.attributes(dead)["QueueArn"]))
			before := e.attributes(orders)[redrivePolicy]
			own := "arn:aws:sqs:us-east-1:000000000000:orders" + suffix
			for _, arn := range []string{own, strings.Replace(own, "us-east-1", "eu-west-1", 1)} {
				code, text := e.refused("SetQueueAttributes", set(arn))
				require.Equal(e, "InvalidParameterValueException", code)
				require.Contains(e, text, "another queue")
			}
			attributes := object{redrivePolicy: policyTo(strings.Replace(own, "orders", "new", 1))}
			if suffix != "" {
				attributes[fifoQueue] = "true"
			}
			_, text := e.refused("CreateQueue", object{"QueueName": "new" + suffix, "Attributes": attributes})
			require.Contains(e, text, "another queue")
			declared := Declared{
				Name: "orders" + suffix, Attributes: map[string]string{redrivePolicy: policyTo("orders" + suffix)},
			}
			var refused *RefusedError
			require.ErrorAs(e, e.s.Declare(e.Context(), []Declared{declared}), &refused)
			require.Equal(e, before, e.attributes(orders)[redrivePolicy])
		}
	})
}

// TestDeclaredSourceBeforeItsTarget: a declaration may let a further queue use a dead letter queue that is there
// already, and may name that queue before the dead letter queue.
func TestDeclaredSourceBeforeItsTarget(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(e *env) {
		declare := func(names ...string) {
			var queues []Declared
			arns := make([]string, len(names))
			policy := map[string]string{redrivePolicy: `{"deadLetterTargetArn": "dead", "maxReceiveCount": 1}`}
			for i, name := range names {
				queues = append(queues, Declared{Name: name, Attributes: policy})
				arns[i] = e.s.arn(name)
			}
			allow := string(marshal(redriveAllow{Permission: byQueue, Sources: arns}))
			queues = append(queues, Declared{Name: "dead", Attributes: map[string]string{redriveAllowPolicy: allow}})
			require.NoError(e, e.s.Declare(e.Context(), queues))
		}
		declare("a")
		declare("b", "a")
		require.Contains(e, e.attributes("b")[redrivePolicy], e.s.arn("dead"))
	})
}

// TestStoredOwnDeadLetterQueue: an earlier version may have stored a queue that is its own dead letter queue. A message
// that fails too often stays among the queue's dead letters. It does not come back again and again, and the log says
// why.
func TestStoredOwnDeadLetterQueue(t *testing.T) {
	t.Parallel()
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		orders, _ := e.withDead("orders.fifo", "dead.fifo", 1)
		_, err := e.s.changeRecord(e.Context(), "orders.fifo", func(r *record) error {
			r.Attributes[redrivePolicy] = strings.Replace(r.Attributes[redrivePolicy], ":dead", ":orders", 1)
			return nil
		})
		require.NoError(e, err)
		time.Sleep(2 * time.Second)
		e.send(orders, "a", "poison", "next")
		require.Equal(e, "poison next", bodies(e.receive(orders)))
		time.Sleep(6 * time.Second)
		e.delete(orders, e.receive(orders)...)
		time.Sleep(2 * time.Second)
		require.Empty(e, e.receive(orders))
		require.Contains(e, e.letters("orders.fifo"), "poison")
		require.NoError(e, e.s.Close(e.Context()))
	})
	require.Contains(t, log.String(), "its own dead letter queue")
}

// TestCycleOfDeadLetterQueues: two queues may be the dead letter queues of each other, as on AWS. A message that always
// fails moves only as often as clients receive it, and is in exactly one of them.
func TestCycleOfDeadLetterQueues(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		one, two := e.withDead("one.fifo", "two.fifo", 1)
		policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":1}`, e.attributes(one)["QueueArn"])
		e.call("SetQueueAttributes", object{"QueueUrl": two, "Attributes": object{redrivePolicy: policy}})
		e.send(one, "a", "poison")
		for range 3 {
			e.die(one)
			time.Sleep(time.Minute)
			require.Equal(e, "0 visible, 0 in flight", e.numbers(one))
			require.Equal(e, "1 visible, 0 in flight", e.numbers(two))
			e.die(two)
			time.Sleep(time.Minute)
			require.Equal(e, "1 visible, 0 in flight", e.numbers(one))
			require.Equal(e, "0 visible, 0 in flight", e.numbers(two))
		}
	})
}

// TestLoweredReceiveCount: after the maxReceiveCount was lowered, a receive delivers no message that was received as
// often before. The message goes to the dead letter queue. The others are delivered by the same receive.
func TestLoweredReceiveCount(t *testing.T) {
	for _, suffix := range []string{"", fifoSuffix} {
		inBothKinds(t, func(e *env) {
			dead := e.create("dead" + suffix)
			policy := func(count int) string {
				arn := e.attributes(dead)["QueueArn"]
				return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, arn, count)
			}
			url := e.create("jobs"+suffix, redrivePolicy, policy(9), visibilityTimeout, "5")
			for i, group := range []string{"a", "b"} {
				if suffix == "" {
					group = ""
				}
				e.send(url, group, fmt.Sprint("bad", i))
				for range 3 {
					e.visible(url, e.receive(url)[0], 0)
				}
				e.send(url, group, fmt.Sprint("good", i))
				if i == 1 {
					break
				}
				set := object{redrivePolicy: policy(3)}
				e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": set})
				got := e.receive(url, "MaxNumberOfMessages", 1)
				require.Equal(e, "good0", bodies(got))
				e.delete(url, got...)
				set[redrivePolicy] = policy(9)
				e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": set})
			}
			e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{redrivePolicy: policy(2)}})
			begun := time.Now()
			got := e.receive(url, "WaitTimeSeconds", 20)
			require.Equal(e, "good1", bodies(got), "a long poll, too")
			require.Zero(e, time.Since(begun))
			e.delete(url, got...)
			require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
			require.ElementsMatch(e, []string{"bad0", "bad1"}, bodiesOf(e.receive(dead)))
		})
	}
}
