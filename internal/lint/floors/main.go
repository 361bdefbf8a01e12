// Command floors prints figures of the structure of package layer, and with --list where they come from.
//
//	go run ./internal/lint/floors [--json] [--dir layer] [--list upward|cycle|methods|kind|lock|timer|long]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/token"
	"io"
	"os"
)

// long is the lines of a function beyond which --list long names the function.
const long = 80

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "floors:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("floors", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print the figures as JSON")
	dir := flags.String("dir", "layer", "the folder of the package")
	list := flags.String("list", "",
		"print the places instead: upward, cycle, methods, kind, lock, timer or long")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := look(*dir, floors)
	if err != nil {
		return err
	}
	switch {
	case *list != "":
		return s.list(*list, out)
	case *asJSON:
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(s.figures)
	}
	_, err = fmt.Fprint(out, s.figures)
	return err
}

func (s *survey) list(what string, out io.Writer) error {
	switch what {
	case "upward":
		for _, u := range s.upward {
			fmt.Fprintf(out, "%s (%s -> %s)\n", u, floors[s.heights[u.from]].name, floors[s.heights[u.to]].name)
			for _, line := range u.details(s.p) {
				fmt.Fprintf(out, "\t%s\n", line)
			}
		}
	case "cycle":
		for _, file := range s.cycle {
			fmt.Fprintf(out, "%s (%s)\n", file, floors[s.heights[file]].name)
		}
	case "methods":
		s.listPlaces(s.above, out)
	case "kind":
		s.listPlaces(s.kinds, out)
	case "lock":
		s.listPlaces(s.locks, out)
	case "timer":
		s.listPlaces(s.timers, out)
	case "long":
		for _, f := range s.functions {
			if f.lines > long {
				fmt.Fprintf(out, "%s %s %d\n", s.p.Place(f.at), f.name, f.lines)
			}
		}
	default:
		return fmt.Errorf("nothing to list named %q", what)
	}
	return nil
}

func (s *survey) listPlaces(places []token.Pos, out io.Writer) {
	for _, place := range s.places(places) {
		fmt.Fprintln(out, place)
	}
}

// places names each place by its file, line and function.
func (s *survey) places(all []token.Pos) (names []string) {
	for _, at := range all {
		names = append(names, s.p.Place(at)+" "+s.functionAt(at))
	}
	return names
}

// functionAt is the name of the function around a place.
func (s *survey) functionAt(at token.Pos) string {
	for _, f := range s.functions {
		if s.p.File(f.at) == s.p.File(at) && s.p.Line(f.at) <= s.p.Line(at) && s.p.Line(at) < s.p.Line(f.at)+f.lines {
			return f.name
		}
	}
	return ""
}
