package cli

import (
	"cmp"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mayBeEmpty are the flags that may have an empty value: a message may have an empty body. Any other flag must have a
// value, so that an unset variable of a shell never means all, none or the default.
var mayBeEmpty = map[string]bool{"enqueue --body": true}

// mayBeBlank are the flags that take any text of a user's data, blanks too.
var mayBeBlank = map[string]bool{"group": true, "body": true, "set": true, "header": true}

// insteadOfEmpty is how to spell the meaning that an empty value could have.
var insteadOfEmpty = map[string]string{
	"group":  "--default-group for the group without a name",
	"body":   "--file /dev/null for an empty body",
	"prefix": "--prefix 0x for the root of the database",
}

// checkAllGiven makes c and all commands below it refuse empty flags and arguments, and flags that are given twice.
// words is the command line. In it no flag may be the value of another.
func checkAllGiven(c *cobra.Command, words []string) {
	refuseTwice(c.PersistentFlags())
	refuseTwice(c.LocalNonPersistentFlags())
	check := c.Args
	c.Args = func(c *cobra.Command, args []string) error {
		if err := cmp.Or(checkSwallowed(c.Flags(), words), checkGiven(c, args)); err != nil {
			return err
		}
		return check(c, args)
	}
	for _, sub := range c.Commands() {
		checkAllGiven(sub, words)
	}
}

// checkSwallowed returns an error if another flag stands in the place of a flag's value. A variable of a shell that is
// not set and not quoted leaves nothing behind. In --by $NAME --dry-run the name would be "--dry-run", and the command
// would not be a dry run. A value behind the sign = is always meant.
func checkSwallowed(flags *pflag.FlagSet, words []string) error {
	for i, word := range words {
		f, wants := lastFlag(flags, word)
		switch {
		case word == "--":
			return nil
		case !wants || i+1 == len(words):
			continue
		}
		next := words[i+1]
		if swallowed, _ := lastFlag(flags, next); swallowed != nil || next == "--" {
			return usagef("--%s has no value, because the next word is %s: give one, or write --%s=%s if you mean that",
				f.Name, next, f.Name, next)
		}
	}
	return nil
}

// lastFlag returns the flag that a word of a command line gives, nil if it gives none. Of several one-letter flags in
// one word it is the last. wants reports whether the value of the flag is the next word.
func lastFlag(flags *pflag.FlagSet, word string) (f *pflag.Flag, wants bool) {
	if name, long := strings.CutPrefix(word, "--"); long {
		name, _, valued := strings.Cut(name, "=")
		f = flags.Lookup(name)
		return f, f != nil && !valued && f.NoOptDefVal == ""
	}
	if len(word) < 2 || word[0] != '-' {
		return nil, false
	}
	for i := range word[1:] {
		switch f = flags.ShorthandLookup(word[1+i : 2+i]); {
		case f == nil:
			return nil, false
		case f.NoOptDefVal == "":
			return f, i+2 == len(word) // otherwise the rest of the word is the value
		}
	}
	return f, false
}

// checkGiven returns an error for an empty flag or argument.
func checkGiven(c *cobra.Command, args []string) (err error) {
	name := commandName(c)
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && !mayBeEmpty[name+" --"+f.Name] {
			err = checkValue(f)
		}
	})
	for i, arg := range args {
		if err == nil && arg == "" {
			err = usagef("argument %d is empty: give a value, or leave the argument out", i+1)
		}
	}
	if f := c.Flags().Lookup(defaultGroup); err == nil && f != nil && f.Changed && f.Value.String() != "true" {
		err = usagef("--%s takes no value: leave the flag out", defaultGroup)
	}
	if err == nil && c.Flags().Changed("group") && c.Flags().Changed(defaultGroup) {
		err = usagef("--group and --%s do not go together: give one of them", defaultGroup)
	}
	return err
}

func checkValue(f *pflag.Flag) error {
	values := []string{f.Value.String()}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		if values = list.GetSlice(); len(values) == 0 {
			values = []string{""}
		}
	}
	for _, value := range values {
		how := ""
		switch {
		case value == "":
			how = "empty"
		case strings.TrimSpace(value) == "" && !mayBeBlank[f.Name]:
			how = "blank"
		default:
			continue
		}
		instead := "leave the flag out"
		if text, ok := insteadOfEmpty[f.Name]; ok {
			instead = text
		}
		return usagef("--%s is %s: give a value, or %s", f.Name, how, instead)
	}
	return nil
}

// refuseTwice makes flags refuse a second value, except those that are lists and those without a value.
func refuseTwice(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); list || f.Value.Type() == "bool" {
			return
		}
		f.Value = &onlyOnce{Value: f.Value}
		if f.DefValue == "0s" {
			f.DefValue = "0" // so that help still takes it for no default
		}
	})
}

// onlyOnce is a flag that may be given once: of two values the first would be ignored.
type onlyOnce struct {
	pflag.Value
	given bool
}

// Set takes the value.
func (o *onlyOnce) Set(text string) error {
	if o.given {
		return errors.New("it is given twice")
	}
	o.given = true
	return o.Value.Set(text)
}

// defaultGroup is the flag that stands for --group with the name of the default group, which is empty.
const defaultGroup = "default-group"

// groupFlag is the group of a command: --group GROUP, or --default-group. In pause and resume neither of them means the
// whole queue. Therefore no value of them does.
type groupFlag struct {
	name    string
	unnamed bool
}

func (g *groupFlag) add(c *cobra.Command, help string) {
	c.Flags().StringVar(&g.name, "group", "", help)
	c.Flags().BoolVar(&g.unnamed, defaultGroup, false, "the group without a name, in place of --group")
}

// words returns the flags as a command line has them, with a space before; "" = they name no group.
func (g *groupFlag) words() string {
	switch {
	case g.unnamed:
		return " --" + defaultGroup
	case g.name != "":
		return " --group " + shellWord(g.name)
	}
	return ""
}

// place names that to which the flags confine a command.
func (g *groupFlag) place() string {
	if g.given() != nil {
		return "group"
	}
	return "queue"
}

// given returns the group that the flags name; nil = they name none.
func (g *groupFlag) given() *string {
	if g.name == "" && !g.unnamed {
		return nil
	}
	return &g.name
}
