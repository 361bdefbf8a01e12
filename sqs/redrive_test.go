package sqs

import (
	"fmt"
	"testing"

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
