// Command rules writes docs/rules.md, which leads from each rule to its guards, tests and scenarios, and
// docs/footprints.md, a digest of layer/layertest/testdata/footprints.txt. Its test fails when a page is not what rules
// would write.
//
// It runs at the root of the module.
package main

import (
	"fmt"
	"io/fs"
	"os"
)

// The pages, each with what writes it.
var pages = []struct {
	path  string
	write func(fs.FS) (string, error)
}{
	{"docs/rules.md", rulesPage},
	{"docs/footprints.md", footprintsPage},
}

func main() {
	root := os.DirFS(".")
	for _, p := range pages {
		text, err := p.write(root)
		if err == nil {
			err = os.WriteFile(p.path, []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "rules: %s: %v\n", p.path, err)
			os.Exit(1)
		}
	}
}
