// Command sqs is an order service whose programs know nothing of fdbfifo: they speak Amazon SQS to `fdbfifo serve`.
//
//	sqs [run] [-json]          the proof: 400 orders, seven processes, six of them killed on the way
//	sqs ship ARGUMENTS         a worker of the proof
//
// Customers send orders to an API in Node (shop.mjs, AWS SDK for JavaScript v3), which puts them into the queue
// orders.fifo, a group for each customer. Workers in Python (pack.py, boto3) take them from there, write them into the
// customer's book, and send them on to shipments.fifo; workers in Go (ship.go, AWS SDK for Go v2) take them from there,
// and write them into another book. The server, the API and the workers are processes. Some are killed by SIGKILL and
// started again; the books must have each order once, and each customer's orders as the customer has sent them.
//
// It is a module of its own, because the SDK is nothing that fdbfifo needs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sqs:", err)
		os.Exit(1)
	}
}

// command runs one of the commands.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	name := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	switch {
	case name == "run":
		return runCommand(ctx, args, stdout, stderr)
	case name == "ship" && len(args) == 4:
		return ship(ctx, args[0], args[1], args[2], args[3], stdin, stdout)
	}
	return fmt.Errorf("unknown command %q: there are run, and ship ENDPOINT QUEUE-URL BOOKS NAME", name)
}

func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("sqs run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	t := trial{log: stderr}
	orders := flags.Int("orders", 400, "orders")
	customers := flags.Int("customers", 20, "customers who send them")
	flags.StringVar(&t.binary, "server", "fdbfifo", "the command fdbfifo, which serves")
	flags.StringVar(&t.node, "node", os.Getenv("SQS_NODE"), "the folder with node_modules/@aws-sdk/client-sqs")
	flags.StringVar(&t.scripts, "scripts", ".", "the folder with shop.mjs and pack.py")
	flags.StringVar(&t.victims, "kill", "server,pack-1,ship-1,shop,server,pack-2", "whom to kill on the way")
	asJSON := flags.Bool("json", false, "print the result as a line of JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *customers < 1 || *orders < *customers {
		return fmt.Errorf("%d orders of %d customers: each customer wants one at least", *orders, *customers)
	}
	if t.node == "" {
		t.node = "bin/node"
	}
	t.customers, t.each = *customers, *orders / *customers
	if missing := lacking(ctx, t.node); missing != "" {
		_, err := fmt.Fprintln(stdout, missing)
		return err
	}
	r, err := t.run(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = fmt.Fprint(stdout, r)
	}
	return errors.Join(err, r.err(r.Killed))
}

// lacking says which of the programs that the proof needs is not here, and how to get it. "" = none.
func lacking(ctx context.Context, node string) string {
	for _, p := range []struct{ name, install string }{
		{"node --version", "apt-get install nodejs"},
		{"python3 --version", "apt-get install python3"},
		{"python3 -c import+boto3", "apt-get install python3-boto3"},
	} {
		args := strings.Fields(p.name)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "+", " ")
		}
		if err := exec.CommandContext(ctx, args[0], args[1:]...).Run(); err != nil {
			return fmt.Sprintf("SKIP: %s: %v; to install: %s", strings.Join(args, " "), err, p.install)
		}
	}
	if _, err := os.Stat(filepath.Join(node, "node_modules/@aws-sdk/client-sqs")); err != nil {
		return "SKIP: no AWS SDK for JavaScript in " + node + "; to install: npm install --prefix " + node +
			" @aws-sdk/client-sqs@3"
	}
	return ""
}
