package clienttest

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/sqs"
)

// scriptTimeout ends a client that hangs.
const scriptTimeout = 2 * time.Minute

// script runs a client of another language against a server, without keys and with them. The client ends with "ok".
func script(t *testing.T, command func(endpoint string) *exec.Cmd) {
	scriptWith(t, command, map[string]map[string]sqs.Key{"open": nil, "keys": {"AKIDA": {Secret: "secret"}}})
}

func scriptWith(t *testing.T, command func(endpoint string) *exec.Cmd, servers map[string]map[string]sqs.Key) {
	for name, keys := range servers {
		t.Run(name, func(t *testing.T) {
			c := command(serve(t, sqs.Options{Keys: keys}))
			c.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=AKIDA", "AWS_SECRET_ACCESS_KEY=secret",
				"AWS_EC2_METADATA_DISABLED=true")
			c.WaitDelay = time.Second
			timer := time.AfterFunc(scriptTimeout, func() { _ = c.Process.Kill() })
			defer timer.Stop()
			out, err := c.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.True(t, strings.HasSuffix(strings.TrimSpace(string(out)), "ok"), "%s", out)
		})
	}
}

// need skips a test if a command fails, and says what installs it.
func need(t *testing.T, install string, command ...string) {
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Skipf("SKIP: %s is not here (%v %.100s); to install: %s", command[0], err, out, install)
	}
}

// TestBoto3 is for each Python that has it: Debian's speaks the Query protocol, newer ones JSON.
func TestBoto3(t *testing.T) {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		t.Run(python, func(t *testing.T) {
			need(t, "apt-get install python3-boto3", python, "-c", "import boto3")
			script(t, func(endpoint string) *exec.Cmd {
				return exec.Command(python, "testdata/sdk.py", endpoint, "AKIDA", "secret")
			})
		})
	}
}

func TestAWSCLI(t *testing.T) {
	for _, aws := range []string{"aws", "/usr/bin/aws"} {
		t.Run(aws, func(t *testing.T) {
			need(t, "apt-get install awscli", aws, "--version")
			script(t, func(endpoint string) *exec.Cmd {
				c := exec.Command("bash", "testdata/cli.sh", endpoint)
				if aws != "aws" {
					c = exec.Command("bash", "-c", `aws() { `+aws+` "$@"; }; set -- "$0"; . testdata/cli.sh`, endpoint)
				}
				return c
			})
		})
	}
}

// TestJavaScript runs with the packages in SQS_NODE, a folder where they were installed by npm.
func TestJavaScript(t *testing.T) {
	folder := os.Getenv("SQS_NODE")
	if folder == "" {
		t.Skip("SKIP: no folder with node_modules in SQS_NODE; to install: " +
			"npm install --prefix FOLDER @aws-sdk/client-sqs sqs-consumer@14")
	}
	need(t, "apt-get install nodejs", "node", "--version")
	script(t, func(endpoint string) *exec.Cmd {
		return exec.Command("node", "testdata/client.mjs", endpoint, "AKIDA", "secret", folder)
	})
}

// TestJavaScript2 is with version 2 of the SDK, which many programs still have.
func TestJavaScript2(t *testing.T) {
	folder := os.Getenv("SQS_NODE")
	if folder == "" {
		t.Skip("SKIP: no folder with node_modules in SQS_NODE; to install: npm install --prefix FOLDER aws-sdk@2")
	}
	need(t, "apt-get install nodejs", "node", "-e", "require('"+folder+"/node_modules/aws-sdk')")
	script(t, func(endpoint string) *exec.Cmd {
		return exec.Command("node", "testdata/client2.js", endpoint, "AKIDA", "secret", folder)
	})
}

// TestOtherClients: what Debian has in packages. Its Python is not always the one that is found first.
func TestOtherClients(t *testing.T) {
	for _, c := range []struct{ name, install, probe, run string }{
		{"boto2", "python3-boto", "/usr/bin/python3 -c 'import boto.sqs'", "/usr/bin/python3 testdata/boto2.py"},
		{
			"celery", "python3-celery python3-boto3 python3-pycurl",
			"/usr/bin/python3 -c 'import celery, boto3, pycurl'", "/usr/bin/python3 testdata/tasks.py",
		},
		{
			"async-aws", "php-cli php-async-aws-sqs php-symfony-http-client",
			"php -r 'exit(@include(\"/usr/share/php/AsyncAws/Sqs/autoload.php\") ? 0 : 1);'", "php testdata/async.php",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			need(t, "apt-get install "+c.install, "bash", "-c", c.probe)
			script(t, func(endpoint string) *exec.Cmd {
				return exec.Command("bash", "-c", "exec "+c.run+` "$@"`, "bash", endpoint, "AKIDA", "secret")
			})
		})
	}
}

// TestPerl is without keys: the client signs for a service that it reads from AWS's host names.
func TestPerl(t *testing.T) {
	need(t, "apt-get install libamazon-sqs-simple-perl", "perl", "-MAmazon::SQS::Simple", "-e", "1")
	scriptWith(t, func(endpoint string) *exec.Cmd {
		return exec.Command("perl", "testdata/simple.pl", endpoint, "AKIDA", "secret")
	}, map[string]map[string]sqs.Key{"open": nil})
}
