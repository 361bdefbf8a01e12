package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// standIn is the module path of a check while the tree's own cannot be fetched.
const standIn = "example.com/fdbfifo"

// program is what is built on the modules.
const program = "internal/release/testdata/program"

// check packs both modules as their releases would be, gives them to a new program through a proxy in a folder, with
// no replace anywhere, and runs that program. The version is the one that fdbkv requires of the root. The program has a
// package on fdbkv, too, which is type-checked only: to build it takes FoundationDB's client library.
func check(ctx context.Context, root string) (said string, err error) {
	scratch, err := os.MkdirTemp("", "release-")
	if err != nil {
		return "", err
	}
	defer func() {
		if removed := os.RemoveAll(scratch); err == nil {
			err = removed
		}
	}()
	tree, proxy := filepath.Join(scratch, "tree"), filepath.Join(scratch, "proxy")
	if err := copyTree(root, tree); err != nil {
		return "", err
	}
	module, err := modulePath(tree)
	if err != nil {
		return "", err
	}
	if !fetchable(module) {
		module = standIn
		if _, err := rename(ctx, tree, module); err != nil {
			return "", err
		}
	}
	version, err := required(filepath.Join(tree, "fdbkv"), module)
	if err != nil {
		return "", err
	}
	for _, r := range []release{
		{module: module, version: version, dir: tree},
		{
			module: module + "/fdbkv", version: version, dir: filepath.Join(tree, "fdbkv"),
			license: filepath.Join(tree, "LICENSE"),
		},
	} {
		if err := r.publish(proxy); err != nil {
			return "", fmt.Errorf("publish %s: %w", r.module, err)
		}
	}
	user := filepath.Join(scratch, "user")
	if err := copyTree(filepath.Join(tree, program), user); err != nil {
		return "", err
	}
	return try(ctx, user, proxy, module, version)
}

// required is the version of the root that the module in dir requires.
func required(dir, module string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^(?:require |\t)` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s requires no %s", dir, module)
	}
	return string(m[1]), nil
}

// try makes a module of the program in dir, as a user would, and runs the program. The modules come from the proxy;
// what they need comes from the module cache of this machine, and from nowhere else.
func try(ctx context.Context, dir, proxy, module, version string) (string, error) {
	cache, err := goCommand(ctx, dir, nil, "env", "GOMODCACHE")
	if err != nil {
		return "", err
	}
	downloads := filepath.Join(strings.TrimSpace(cache), "cache", "download")
	env := []string{
		"GOPROXY=" + fileURL(proxy) + "," + fileURL(downloads), "GOSUMDB=off", "GONOPROXY=", "GOPRIVATE=", "GOWORK=off",
		"GOFLAGS=-mod=mod -modcacherw -trimpath", "GOMODCACHE=" + filepath.Join(filepath.Dir(dir), "modules"),
		"CGO_ENABLED=0",
	}
	for _, args := range [][]string{
		{"mod", "init", "example.com/user"},
		{"get", module + "@" + version, module + "/fdbkv@" + version},
		{"build", "-o", os.DevNull, "."},
		{"run", module + "/fdbkv/typecheck"},
	} {
		if _, err := goCommand(ctx, dir, env, args...); err != nil {
			return "", err
		}
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	if strings.Contains(string(mod), "replace") {
		return "", fmt.Errorf("the program has a replace:\n%s", mod)
	}
	said, err := goCommand(ctx, dir, env, "run", ".")
	if err != nil {
		return "", err
	}
	return said + fmt.Sprintf("built on %s and %[1]s/fdbkv %s, without a replace\n", module, version), nil
}

// fileURL is a folder as GOPROXY wants it.
func fileURL(dir string) string {
	dir = filepath.ToSlash(dir)
	if !strings.HasPrefix(dir, "/") {
		dir = "/" + dir // C:/…
	}
	return "file://" + dir
}
