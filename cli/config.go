package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

const configHelp = `Print the queue's configuration, or change it: --set gives a setting a value. The value 0 is the
default, except for numbers of attempts, where it means no limit. All settings of one command are stored together, or
none is. Every open handle follows within a second. To raise the shards takes two seconds.`

func newConfigCmd(s *session) *cobra.Command {
	var set []string
	c := &cobra.Command{
		Use:   "config [QUEUE] [--set NAME=VALUE]... [--by NAME] [--log FILE]",
		Short: "Print or change the queue's configuration",
		Long:  configHelp,
		Example: `  fdbfifo config orders
  fdbfifo config orders --set lease=2m --set delay=0`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.queueArgument(c, args); err != nil {
				return err
			}
			changes, err := settingFlags(set)
			if err != nil {
				return err
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				config, version, err := configure(c.Context(), s.admin(q), changes)
				var limit *layer.LimitError
				if errors.As(err, &limit) && limit.What == "shards" && limit.Min > 1 && limit.Got < limit.Min {
					return asUsage(&Error{
						Err:  err,
						Text: fmt.Sprintf("--set shards: the queue has %d, and cannot have fewer", limit.Min),
						Hint: fmt.Sprintf("Shards can be raised, up to %d.", limit.Max),
					})
				}
				if errors.As(err, &limit) {
					return asUsage(err)
				}
				if err != nil && version > 0 {
					return errors.Join(s.printConfig(config, version), s.halfDone(err))
				}
				if err != nil {
					return err
				}
				return s.printConfig(config, version)
			})
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "`NAME=VALUE` of a setting (repeatable)")
	s.addActing(c)
	return c
}

// halfDone is the error of a change of settings that are stored: the steps behind that were not all done.
func (s *session) halfDone(err error) error {
	return &Error{
		Text: "the settings are stored as above, but the new rate or shards are not everywhere in use: " + err.Error(),
		Hint: s.command("sweep") + " does the rest. Workers sweep about every ten minutes, too.", Err: err,
	}
}

// queueArgument takes the queue's name from the arguments, if they have it.
func (s *session) queueArgument(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
	case len(args) > 1:
		return usagef("unexpected argument %q: the command takes the name of one queue", args[1])
	case c.Flags().Changed("queue") && s.queue != args[0]:
		return usagef("two queues are named, %s and %s: name one", display(s.queue), display(args[0]))
	default:
		s.queue = args[0]
	}
	return nil
}

// settingFlags turns NAME=VALUE into changes, and checks what can be checked without the queue.
func settingFlags(set []string) ([]func(c *layer.Config), error) {
	var changes []func(c *layer.Config)
	seen := make(map[string]bool)
	for _, text := range set {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usagef("--set is %q: NAME=VALUE is wanted", text)
		}
		if value == "" {
			return nil, usagef("--set %s= has no value: give one, or leave the setting out", display(name))
		}
		if seen[name] {
			return nil, usagef("--set %s is given twice", name)
		}
		seen[name] = true
		var scratch layer.Config
		if err := scratch.Set(name, value); err != nil {
			return nil, settingUsage(name, err)
		}
		changes = append(changes, func(c *layer.Config) {
			_ = c.Set(name, value) // it went well above
		})
	}
	return changes, nil
}

// settingUsage returns a usage error that lists the settings, if err says that there is no setting of this name.
func settingUsage(name string, err error) error {
	var unknown *layer.UnknownSettingError
	if !errors.As(err, &unknown) {
		return asUsage(err)
	}
	var names []string
	for _, s := range layer.Settings() {
		names = append(names, s.Name)
	}
	return usagef("--set: there is no setting %q; there are %s", name, strings.Join(names, ", "))
}

func configure(ctx context.Context, a layer.Admin, changes []func(*layer.Config)) (layer.Config, int64, error) {
	if len(changes) == 0 {
		return a.ReadConfig(ctx)
	}
	return a.Configure(ctx, func(c *layer.Config) {
		for _, change := range changes {
			change(c)
		}
	})
}

func (s *session) printConfig(config layer.Config, version int64) error {
	if s.json {
		return printJSON(s.stdout, struct {
			Queue   string       `json:"queue"`
			Version int64        `json:"version"`
			Config  layer.Config `json:"config"`
		}{s.queue, version, config})
	}
	t := newTable("setting", "value", "allowed", "meaning")
	for _, setting := range layer.Settings() {
		value, err := config.Setting(setting.Name)
		if err != nil {
			return err
		}
		t.AppendRow(tableRow{setting.Name, value, setting.Allowed, setting.Help})
	}
	t.AppendFooter(tableRow{"version", version})
	return s.printTable(t)
}
