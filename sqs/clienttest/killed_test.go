package clienttest

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	client "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
)

var (
	seedFlag   = flag.Uint64("killed.seed", 0, "seed of TestKilled; 0 = of SEED")
	forFlag    = flag.Duration("killed.for", 12*time.Second, "how long TestKilled sends and kills")
	everyFlag  = flag.Duration("killed.every", 2*time.Second, "after how long a server is killed")
	engineFlag = flag.String("killed.engine", "disk", "disk, or fdb: on the cluster of FDB_CLUSTER_FILE")
)

// server is fdbfifo serve as a process.
type server struct {
	binary, address string
	args            []string
	process         *exec.Cmd
}

// build builds the command, that of the module fdbkv if the servers are to be on a cluster.
func build(t *testing.T) string {
	binary := filepath.Join(t.TempDir(), "fdbfifo")
	make := exec.Command("go", "build", "-o", binary, "./cmd/fdbfifo")
	if make.Dir = "../.."; *engineFlag == "fdb" {
		make.Dir = "../../fdbkv"
	}
	out, err := make.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// start starts the server, at the address that it had before if it had one, and waits until it listens.
func (s *server) start() error {
	s.process = exec.Command(s.binary, append([]string{"serve", "--sqs", s.address}, s.args...)...)
	notices, err := s.process.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.process.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(notices)
	for lines.Scan() {
		if _, at, ok := strings.Cut(lines.Text(), "serving SQS at http://"); ok {
			s.address = at
			go func() {
				for lines.Scan() {
				}
			}()
			return nil
		}
	}
	return errors.Join(errors.New("the server has ended"), s.process.Wait())
}

func (s *server) kill() { _ = s.process.Process.Kill(); _ = s.process.Wait() }

// killed is a run of TestKilled.
type killed struct {
	*testing.T
	ctx     context.Context
	servers []*server
	queues  []string // their URLs' ends; of each group, by its number
	ledger  *ledger
	workers sync.WaitGroup
}

// queueOf is the queue of a group or of a worker.
func (k *killed) queueOf(i int) *string { return &k.queues[i%len(k.queues)] }

func (k *killed) client(i int) *client.Client {
	return newClient("http://"+k.servers[i%len(k.servers)].address, "x", "x")
}

// TestKilled: eight workers, with the SDK for Go, boto3 and sqs-consumer as far as they are here, whose handlers fail
// now and then, and two servers on one database that are killed by SIGKILL again and again. In one queue each receive
// has a visibility timeout, in the other each message. Each group is handled in order, by one worker at a time; nothing
// is lost, and nothing is handled after its delete was answered. make sqs-crash runs it for minutes, with a seed.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for a while")
	}
	seed := *seedFlag
	if seed == 0 {
		seed = seeds.Of(t.Name())
	}
	t.Logf("replay, up to the timing of processes: make sqs-crash SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	ctx, finish := context.WithTimeout(t.Context(), *forFlag+5*time.Minute)
	defer finish()
	k := &killed{T: t, ctx: ctx, ledger: newLedger(seed)}
	k.queues = []string{"claim.fifo", "item.fifo"}
	args, binary := []string{"--engine", "disk:" + t.TempDir(), "--reuse-names"}, build(t)
	if *engineFlag == "fdb" {
		args = []string{"--engine", "fdb", "--prefix", fmt.Sprintf("killed-%d/", time.Now().UnixNano())}
	}
	for range 2 {
		s := &server{binary: binary, address: "127.0.0.1:0", args: args}
		require.NoError(t, s.start())
		k.servers = append(k.servers, s)
	}
	for _, queue := range k.queues {
		create(t, k.client(0), queue, map[string]string{
			"VisibilityTimeout": "3", "fdbfifo.Visibility": strings.TrimSuffix(queue, ".fifo"),
		})
	}

	const groups = 6
	var senders sync.WaitGroup
	sent, until := make([]int, groups), time.Now().Add(*forFlag)
	for g := range groups {
		senders.Go(func() { sent[g] = k.send(g, until) })
	}
	k.work()
	kills := 0
	for time.Now().Before(until) {
		time.Sleep(*everyFlag)
		s := k.servers[random.IntN(len(k.servers))]
		s.kill()
		require.NoError(t, s.start())
		kills++
	}
	senders.Wait()
	for _, queue := range k.queues {
		for ctx.Err() == nil && !empty(ctx, k.client(0), &queue) {
			time.Sleep(100 * time.Millisecond)
		}
		if ctx.Err() != nil {
			now, err := attributes(t.Context(), k.client(0), &queue)
			t.Fatalf("not all of %s was handled in time: there is %v (%v), handled %v, faults %v",
				queue, now, err, k.ledger.by, k.ledger.faults)
		}
	}
	finish()
	k.workers.Wait()
	for _, s := range k.servers {
		s.kill()
	}
	total := 0
	for _, n := range sent {
		total += n
	}
	t.Logf("%d messages, %d kills, %d failed on purpose, handled by %v", total, kills, k.ledger.failed, k.ledger.by)
	require.Empty(t, k.ledger.faults)
	require.Zero(t, k.ledger.left(total), "lost")
	for worker, n := range k.ledger.by {
		require.NotZero(t, n, worker)
	}
}

// send sends the messages of a group, each until its answer has come, and returns how many.
func (k *killed) send(group int, until time.Time) int {
	for n := 0; ; n++ {
		if time.Now().After(until) {
			return n
		}
		in := &client.SendMessageInput{
			QueueUrl: k.queueOf(group), MessageGroupId: aws.String(strconv.Itoa(group)),
			MessageBody: aws.String(fmt.Sprintf("%d:%06d", group, n)),
		}
		for try := 0; k.ctx.Err() == nil; try++ { // an answer may be lost with the server
			if _, err := k.client(group+try).SendMessage(k.ctx, in, once); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(50 * time.Millisecond)
		for k.ctx.Err() == nil && n-k.ledger.reached(group) > 50 { // or a busy machine does not come to an end
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// work starts eight workers.
func (k *killed) work() {
	endpoint := func(i int) string { return "http://" + k.servers[i%len(k.servers)].address }
	var others []*exec.Cmd
	if exec.Command("python3", "-c", "import boto3").Run() == nil {
		for i := range 2 {
			others = append(others, exec.Command("python3", "testdata/worker.py", endpoint(i), *k.queueOf(i), "x", "x"))
		}
	} else {
		k.Log("no workers with boto3; to install: apt-get install python3-boto3")
	}
	if folder := os.Getenv("SQS_NODE"); folder != "" {
		for i := range 2 {
			others = append(others,
				exec.Command("node", "testdata/worker.mjs", endpoint(i), *k.queueOf(i + 1), "x", "x", folder))
		}
	} else {
		k.Log("no workers with sqs-consumer; to install: " +
			"npm install --prefix FOLDER @aws-sdk/client-sqs sqs-consumer@14, and SQS_NODE=FOLDER")
	}
	for i := range 8 - len(others) {
		name := k.ledger.worker(fmt.Sprintf("go-%d", i))
		k.workers.Go(func() {
			for k.ctx.Err() == nil {
				k.workOnce(name, k.client(i), k.queueOf(i/len(k.servers)))
			}
		})
	}
	for i, c := range others {
		name := k.ledger.worker(fmt.Sprintf("%s-%d", filepath.Base(c.Args[0]), i%2))
		k.workers.Go(func() { k.follow(name, c) })
	}
}

// workOnce receives once, and handles what has come.
func (k *killed) workOnce(worker string, c *client.Client, queue *string) {
	asked := time.Now()
	in := &client.ReceiveMessageInput{QueueUrl: queue, MaxNumberOfMessages: 3}
	got, err := c.ReceiveMessage(k.ctx, in, once)
	if err != nil || len(got.Messages) == 0 {
		time.Sleep(50 * time.Millisecond)
		return
	}
	over := make(map[string]bool) // of groups: those behind a message that was given back wait for it
	for _, m := range got.Messages {
		giveBack := func() {
			_, _ = c.ChangeMessageVisibility(k.ctx, &client.ChangeMessageVisibilityInput{
				QueueUrl: queue, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 0,
			}, once)
		}
		if over[group(*m.Body)] {
			giveBack() // has been done, in the queue of which each receive has a timeout
			continue
		}
		deleted := false
		switch k.ledger.got(worker, *m.Body, time.Since(asked)) {
		case handle:
			_, err := c.DeleteMessage(k.ctx, &client.DeleteMessageInput{
				QueueUrl: queue, ReceiptHandle: m.ReceiptHandle,
			}, once)
			deleted = err == nil
		case fail:
			giveBack()
		}
		if over[group(*m.Body)] = !deleted; deleted {
			k.ledger.deleted(*m.Body)
		}
	}
}

// follow runs a worker in another language, which asks for each message what to do with it.
func (k *killed) follow(worker string, c *exec.Cmd) {
	answers, err := c.StdinPipe()
	if err == nil {
		c.Stderr = os.Stderr
		var said interface{ Read([]byte) (int, error) }
		if said, err = c.StdoutPipe(); err == nil {
			if err = c.Start(); err == nil {
				stop := context.AfterFunc(k.ctx, func() { _ = c.Process.Kill() })
				defer stop()
				for lines := bufio.NewScanner(said); lines.Scan(); {
					word, rest, _ := strings.Cut(lines.Text(), " ")
					if word == "deleted" {
						k.ledger.deleted(rest)
					}
					if word != "got" {
						continue
					}
					body, age, _ := strings.Cut(rest, " ")
					ms, _ := strconv.Atoi(age)
					v := k.ledger.got(worker, body, time.Duration(ms)*time.Millisecond)
					_, _ = fmt.Fprintln(answers, v) // a worker that has ended says nothing more
				}
				err = c.Wait()
			}
		}
	}
	if k.ctx.Err() == nil {
		k.Errorf("worker %s has ended: %v", worker, err)
	}
}

// empty reports whether there are no messages in the queue.
func empty(ctx context.Context, c *client.Client, url *string) bool {
	now, err := attributes(ctx, c, url)
	return err == nil && now["ApproximateNumberOfMessages"] == "0" &&
		now["ApproximateNumberOfMessagesNotVisible"] == "0"
}

func attributes(ctx context.Context, c *client.Client, url *string) (map[string]string, error) {
	got, err := c.GetQueueAttributes(ctx, &client.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{"All"}})
	if err != nil {
		return nil, err
	}
	return got.Attributes, nil
}
