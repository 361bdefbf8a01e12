package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// FoundationDB's directory layer maps paths to short prefixes. It is a part of the bindings, not of the database. It
// keeps its nodes at documented keys, so a path can be looked up with reads alone:
//
//   - nodes, the prefix of all nodes, is the byte 0xfe.
//   - The node of a directory with the prefix p is nodes + (p), with p as bytes.
//   - The root is the directory whose prefix is nodes.
//   - A child is at node + (0, name). The value is the child's prefix.
//   - The directory's layer, a text that names its use, is at node + ("layer"), as bytes.
//
// A partition is a directory with nodes of its own. They are below its prefix + 0xfe.

// directory is a node of the directory layer.
type directory struct {
	nodes  []byte // where the nodes of its children lie
	node   []byte
	prefix []byte // of its contents; nil = of the root, which has none
}

func rootDirectory(below []byte) directory {
	nodes := append(slices.Clone(below), 0xfe)
	return directory{nodes: nodes, node: tuple.AppendBytes(slices.Clone(nodes), nodes)}
}

func (d directory) childKey(name string) []byte {
	return append(slices.Clone(d.node), tuple.Tuple{0, name}.Pack()...)
}

// layerPartition is the layer of a directory that is a partition.
const layerPartition = "partition"

// child returns the directory with the prefix, which is below d.
func (d directory) child(ctx context.Context, tx kv.ReadTx, prefix []byte) (directory, error) {
	below := directory{nodes: d.nodes, node: tuple.AppendBytes(slices.Clone(d.nodes), prefix), prefix: prefix}
	layer, err := tx.Get(tuple.AppendBytes(slices.Clone(below.node), []byte("layer"))).Wait(ctx)
	if err == nil && string(layer) == layerPartition {
		root := rootDirectory(prefix)
		below.nodes, below.node = root.nodes, root.node
	}
	return below, err
}

// children returns the names and prefixes of up to limit children.
func (d directory) children(
	ctx context.Context, tx kv.ReadTx, limit int,
) (names []string, prefixes [][]byte, err error) {
	start := tuple.AppendInt(slices.Clone(d.node), 0)
	rows, err := tx.GetRange(kv.PrefixRange(start).Selectors(), kv.RangeOptions{Limit: limit}).Wait(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, row := range rows {
		name, rest, err := tuple.DecodeString(row.Key[len(start):])
		if err != nil || len(rest) > 0 {
			continue // no child
		}
		names, prefixes = append(names, name), append(prefixes, row.Value)
	}
	return names, prefixes, nil
}

// directoryPath reads a path: names with slashes between them, or a tuple of names.
func directoryPath(text string) ([]string, error) {
	if !strings.HasPrefix(text, "(") {
		path := strings.Split(strings.Trim(text, "/"), "/")
		if slices.Contains(path, "") {
			return nil, usagef("--directory wants names with slashes between them, like app/queues, not %q", text)
		}
		return path, nil
	}
	parts, err := tuple.Parse(text)
	if err != nil {
		return nil, usagef("--directory: %w", err)
	}
	var path []string
	for _, part := range parts {
		name, ok := part.(string)
		if !ok {
			return nil, usagef("--directory: %v is no name", part)
		}
		path = append(path, name)
	}
	if len(path) == 0 {
		return nil, usagef("--directory: the root directory holds no queues")
	}
	return path, nil
}

// pathText returns the text of a path as directoryPath reads it.
func pathText(path []string) string {
	for _, name := range path {
		if name == "" || strings.ContainsRune(name, '/') || strings.HasPrefix(name, "(") {
			var parts tuple.Tuple
			for _, name := range path {
				parts = append(parts, name)
			}
			return parts.String()
		}
	}
	return strings.Join(path, "/")
}

// listedDirectories bounds how many directories an error names.
const listedDirectories = 20

// findDirectory returns the prefix of the directory at path.
func (s *session) findDirectory(ctx context.Context, db kv.DB, path []string) (key []byte, err error) {
	var missing *Error
	_, err = kv.Run(ctx, db, kv.TxOptions{Call: "find directory"}, func(tx kv.Tx, _ kv.Attempt) error {
		at := rootDirectory(nil)
		missing = nil
		for i, name := range path {
			prefix, err := tx.Snapshot().Get(at.childKey(name)).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read directory: %w", err)
			}
			if prefix == nil {
				missing, err = s.noDirectory(ctx, tx.Snapshot(), at, path, i)
				return err
			}
			if at, err = at.child(ctx, tx.Snapshot(), prefix); err != nil {
				return fmt.Errorf("read directory: %w", err)
			}
		}
		key = at.prefix
		return nil
	})
	if err == nil && missing != nil {
		err = missing
	}
	return key, err
}

// errNoDirectory says that --directory names nothing.
var errNoDirectory = errors.New("no such directory")

// noDirectory returns an error that lists the directories where the path ends. That is at, which is found names below
// the root.
func (s *session) noDirectory(
	ctx context.Context, tx kv.ReadTx, at directory, path []string, found int,
) (*Error, error) {
	names, _, err := at.children(ctx, tx, listedDirectories+1)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	e := &Error{Text: fmt.Sprintf("there is no directory %q", pathText(path)), Exit: ExitNoQueue, Err: errNoDirectory}
	more := ""
	if len(names) > listedDirectories {
		names, more = names[:listedDirectories], " and more"
	}
	for i := range names {
		names[i] = display(names[i])
	}
	switch {
	case found == 0 && len(names) == 0:
		engine, _ := s.engineParts()
		e.Hint = "There are none at all. Directories are made by FoundationDB's bindings"
		if engine != clusterEngine {
			e.Hint += ", which do not work on the engine " + engine
		}
		e.Hint += ".\n  Name the prefix itself with --prefix; " + s.program() +
			" queues --all finds those that have queues."
	case len(names) == 0:
		e.Hint = fmt.Sprintf("The directory %q has none below it.", pathText(path[:found]))
	default:
		e.Hint = "There are: " + strings.Join(names, ", ") + more + "."
		if found > 0 {
			e.Hint = fmt.Sprintf("The directory %q has: %s%s.", pathText(path[:found]), strings.Join(names, ", "), more)
		}
	}
	return e, nil
}

// directoriesSeen bounds how many directories a search for the path of a prefix looks at.
const directoriesSeen = 500

// directoryPaths returns the paths of directories by their prefixes, those near the root first.
func directoryPaths(ctx context.Context, tx kv.ReadTx) (map[string]string, error) {
	type found struct {
		directory
		path []string
	}
	paths := make(map[string]string)
	next := []found{{directory: rootDirectory(nil)}}
	for len(next) > 0 && len(paths) < directoriesSeen {
		at := next[0]
		next = next[1:]
		names, prefixes, err := at.children(ctx, tx, directoriesSeen-len(paths))
		if err != nil {
			return nil, err
		}
		for i, name := range names {
			below, err := at.child(ctx, tx, prefixes[i])
			if err != nil {
				return nil, err
			}
			path := append(slices.Clone(at.path), name)
			paths[string(below.prefix)] = pathText(path)
			next = append(next, found{below, path})
		}
	}
	return paths, nil
}
