// Command fdbfifo keeps grouped FIFO queues. See fdbfifo --help, and package cli, which does the work.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"fdbfifo/cli"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	kill := make(chan struct{})
	go func() {
		<-signals
		stop() // come to an end in good order
		<-signals
		close(kill) // come to an end
		<-signals
		os.Exit(cli.ExitInterrupted)
	}()
	app := cli.New()
	app.Kill = kill
	os.Exit(cli.ExitCode(app.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}
