package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Main runs app as the process's command line and returns the exit code. The first Ctrl-C, SIGTERM or SIGHUP (the
// terminal is gone) lets the command end in good order. The second one cuts that short. The third one ends the process.
// Without a third one the process ends 10 s after the second, because a write may wait for a reader that never reads.
// A write to a pipe without a reader fails like any other write. It does not end the process in the middle of its work.
func Main(app *App) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	// signal.Ignore would be inherited by the commands that work runs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	kill := make(chan struct{})
	go obey(signals, stop, func() { close(kill) }, func() { os.Exit(ExitInterrupted) })
	app.Kill = kill
	return ExitCode(app.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// killPatience is how long a command may take to end after the second signal. The commands of its handlers are killed
// at once, and a worker and a queue end within seconds.
const killPatience = 10 * time.Second

// obey does what the signals say: stop, kill, and exit.
func obey(signals <-chan os.Signal, stop, kill, exit func()) {
	<-signals
	stop()
	<-signals
	kill()
	select {
	case <-signals:
	case <-time.After(killPatience):
	}
	exit()
}
