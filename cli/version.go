package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version says what the program was built from: the module's version if it was built as one, else the revision of the
// source folder.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown, " + runtime.Version()
	}
	return describeBuild(info)
}

func describeBuild(info *debug.BuildInfo) string {
	revision, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	text := cmp.Or(info.Main.Version, "(devel)")
	if revision != "" {
		text += fmt.Sprintf(" (revision %.12s%s)", revision, changed)
	}
	return fmt.Sprintf("%s, %s %s/%s", text, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
