package sqs

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Key is the secret of an access key, and the account that it stands for.
type Key struct {
	Secret  string
	Account string // "" = the server's
}

// ReadKeys reads keys: on each line an access key, its secret, and, if wanted, an account of twelve digits. It skips
// empty lines and lines that begin with #.
func ReadKeys(r io.Reader) (map[string]Key, error) {
	keys := make(map[string]Key)
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		key := Key{}
		if len(words) == 3 {
			key.Account = words[2]
		}
		if len(words) < 2 || len(words) > 3 || key.Account != "" && !isAccount(key.Account) {
			return nil, fmt.Errorf("line %d: want ACCESS-KEY SECRET-KEY, and perhaps an account of 12 digits", n)
		}
		if key.Secret = words[1]; keys[words[0]] != (Key{}) {
			return nil, fmt.Errorf("line %d: the access key was there before", n)
		}
		keys[words[0]] = key
	}
	return keys, lines.Err()
}

func isAccount(text string) bool {
	_, err := strconv.ParseUint(text, 10, 64)
	return err == nil && len(text) == 12
}
