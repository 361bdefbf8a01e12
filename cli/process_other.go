//go:build !unix

package cli

import (
	"io/fs"
	"os"
	"os/exec"
)

// ownGroup does nothing where there are no process groups.
func ownGroup(*exec.Cmd) {}

// userOf returns -1 where files have no user.
func userOf(fs.FileInfo) int { return -1 }

func freeze(*os.Process) error { return nil }
func thaw(*os.Process) error   { return nil }
