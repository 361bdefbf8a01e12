package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Main runs app as the process's command line and returns what the process should end with. The first Ctrl-C, or
// SIGTERM, lets the command come to an end in good order, the second cuts that short, the third ends the process.
func Main(app *App) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	kill := make(chan struct{})
	go func() {
		<-signals
		stop()
		<-signals
		close(kill)
		<-signals
		os.Exit(ExitInterrupted)
	}()
	app.Kill = kill
	return ExitCode(app.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
