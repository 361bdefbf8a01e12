package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Tests runs a package's tests, run, on the cluster of FDB_CLUSTER_FILE, or else on one of its own, and returns the
// exit code for TestMain. run finds the variable set. Where there is no cluster and nothing to start one with, Tests
// prints a line that begins with SKIP and returns 0.
func Tests(run func() int) (code int) {
	if os.Getenv(FileVariable) != "" {
		return run()
	}
	file, stop, err := Provide(context.Background())
	switch {
	case errors.Is(err, ErrNoBinaries):
		fmt.Println(Skip)
		return 0
	case err != nil:
		fmt.Println(err)
		return 1
	}
	defer func() {
		if err := stop(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}()
	if err := os.Setenv(FileVariable, file); err != nil {
		fmt.Println(err)
		return 1
	}
	return run()
}

// Skip is what to print where there is no cluster.
const Skip = "SKIP: FDB_CLUSTER_FILE is not set, and there are no fdbserver and fdbcli in FDB_BIN or on the PATH"

// Provide starts a cluster as the environment describes it (ServersVariable, TroubleVariable). stop ends the trouble
// and the cluster, and returns the error of a cluster that did not come back. stop prints the harm that was done.
func Provide(ctx context.Context) (file string, stop func() error, err error) {
	several, err := number(ServersVariable, 1)
	if err != nil {
		return "", nil, err
	}
	seed, err := number(TroubleVariable, 0)
	if err != nil {
		return "", nil, err
	}
	var c *Cluster
	switch {
	case several > 1:
		c, err = StartSeveral(ctx, int(several))
	case seed > 0:
		err = fmt.Errorf("cluster: %s takes %s=%d or more", TroubleVariable, ServersVariable, MinServers)
	default:
		c, err = Start(ctx)
	}
	if err != nil {
		return "", nil, err
	}
	if seed == 0 {
		return c.File, c.Stop, nil
	}
	// Until stop, not until ctx ends: the command of an interrupted run needs the cluster to end.
	during, cancel := context.WithCancel(context.WithoutCancel(ctx))
	broken := make(chan error, 1)
	go func() {
		harm, err := c.Trouble(during, seed)
		// At once: what runs on a cluster that does not come back may hang.
		fmt.Printf("%s=%d: %s\n", TroubleVariable, seed, harm)
		if err != nil {
			fmt.Println(err)
		}
		broken <- err
	}()
	return c.File, func() error {
		cancel()
		return errors.Join(<-broken, c.Stop())
	}, nil
}

// number reads a variable of the environment.
func number(variable string, otherwise uint64) (uint64, error) {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("cluster: %s: %w", variable, err)
	}
	return n, nil
}
