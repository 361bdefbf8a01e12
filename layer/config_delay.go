package layer

// settingRetroactive is the name of a setting which is never taken back.
const settingRetroactive = "retroactive_delay"

// retroactiveSetting is the setting for Config.RetroactiveDelay, left out of the stored document while it is false.
func retroactiveSetting(help string) setting {
	s := boolSetting(settingRetroactive, func(c *Config) *bool { return &c.RetroactiveDelay }, help)
	s.sparse = true
	return s
}

// retro is how the queue delays the messages that have no time of their own.
func (c Config) retro() retro { return retro{on: c.RetroactiveDelay, delayMS: c.Delay.Milliseconds()} }

// retro is how a queue delays the messages that have no time of their own (dueMS 0). In a queue with retroactive delay
// such a message is due when the queue's delay of now is over since its enqueue, whatever the delay was then; a message
// which is to come at once has the time of its enqueue. In every other queue the time is fixed by the enqueue.
//
// Nobody holds a group whose head is delayed so; a timer leads there, as to every delayed head. But nobody can say when
// it will be due: so the timer has the time of the enqueue, above sinceBase, and readers read such timers up to now
// less the delay. So a change of the delay writes nothing but the configuration, however many messages wait.
type retro struct {
	on      bool
	delayMS int64
}

// sinceBase is added to the times of timers that have the time of an enqueue: all other times are far below it.
const sinceBase = 1 << 50 // ms

// dueOf returns when (ms) a timer with the time in its key is due.
func (r retro) dueOf(timingMS int64) int64 {
	if timingMS < sinceBase {
		return timingMS
	}
	return timingMS - sinceBase + r.delayMS
}

// begunMS returns up to which enqueue the delay is over at nowMS.
func (r retro) begunMS(nowMS int64) int64 { return max(nowMS-r.delayMS, 0) }

// own returns the dueMS of a message, at the time nowMS of its enqueue or later, that is to be delivered at once.
func (r retro) own(nowMS int64) int64 {
	if r.on {
		return nowMS
	}
	return 0
}
