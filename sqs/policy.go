package sqs

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
)

// ownerOnly are the operations that no policy opens for other accounts, as on AWS.
var ownerOnly = []string{
	"AddPermission", "CancelMessageMoveTask", "CreateQueue", "DeleteQueue", "ListMessageMoveTasks", "ListQueues",
	"ListQueueTags", "RemovePermission", "SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue",
}

// foreign reports whether the client is of another account than the queues.
func (s *Server) foreign(c *call) bool { return c.account != s.options.Account }

// mayCall refuses what only the queues' own account may do.
func (s *Server) mayCall(c *call) error {
	if s.foreign(c) && slices.Contains(ownerOnly, c.action) {
		return s.notAuthorized(c, "*", "the operation is not open to other accounts")
	}
	return nil
}

// mayUse refuses a client of another account whom the queue's policy does not allow what it asks for.
func (s *Server) mayUse(c *call, name string, r record) error {
	// A batch is allowed to whoever may do the same one by one.
	action := strings.TrimSuffix(c.action, "Batch")
	if !s.foreign(c) || allows(r.Attributes[policyAttribute], c.account, action, s.arn(name)) {
		return nil
	}
	return s.notAuthorized(c, s.arn(name), "no resource-based policy allows it")
}

func (s *Server) notAuthorized(c *call, resource, why string) error {
	return denied("AccessDenied", "User: arn:aws:iam::%s:root is not authorized to perform: sqs:%s on resource: %s "+
		"because %s", c.account, strings.ToLower(c.action), resource, why)
}

// oneOrMore is a text, or a list of texts.
type oneOrMore []string

func (l *oneOrMore) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = oneOrMore{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// statement is what the server understands of a policy's statement. What it does not understand never allows
// anything: a Deny is taken to hold for all, and an Allow for nobody.
type statement struct {
	Effect       string          `json:"Effect"`
	Principal    json.RawMessage `json:"Principal"`
	NotPrincipal json.RawMessage `json:"NotPrincipal"`
	Action       oneOrMore       `json:"Action"`
	NotAction    oneOrMore       `json:"NotAction"`
	Resource     oneOrMore       `json:"Resource"`
	NotResource  oneOrMore       `json:"NotResource"`
	Condition    json.RawMessage `json:"Condition"`
}

// allows reports whether a policy allows an account of others an action on a queue: some statement allows it, and
// none denies it.
func allows(text, account, action, arn string) bool {
	var p struct{ Statement json.RawMessage }
	if text == "" || json.Unmarshal([]byte(text), &p) != nil {
		return false
	}
	var all []statement
	if json.Unmarshal(p.Statement, &all) != nil {
		var one statement // a policy may have one statement without a list
		if json.Unmarshal(p.Statement, &one) != nil {
			return false
		}
		all = []statement{one}
	}
	allowed := false
	for _, st := range all {
		deny := st.Effect != "Allow"
		if st.strange() {
			if deny {
				return false
			}
			continue
		}
		holds := st.isFor(account, deny) && st.hasAction(action) && st.hasResource(arn)
		if holds && deny {
			return false
		}
		allowed = allowed || holds
	}
	return allowed
}

// strange reports whether the statement has parts that the server does not weigh.
func (st statement) strange() bool {
	return st.NotPrincipal != nil || st.NotAction != nil || st.NotResource != nil || st.Condition != nil
}

// isFor reports whether the statement is about an account. A user or role of the account is the account if the
// statement denies, and nobody if it allows.
func (st statement) isFor(account string, deny bool) bool {
	var everybody string
	if json.Unmarshal(st.Principal, &everybody) == nil {
		return everybody == "*"
	}
	var of struct{ AWS oneOrMore }
	if json.Unmarshal(st.Principal, &of) != nil {
		return deny
	}
	return slices.ContainsFunc(of.AWS, func(p string) bool {
		of := "arn:aws:iam::" + account + ":"
		return p == "*" || p == account || p == of+"root" || deny && strings.HasPrefix(p, of)
	})
}

func (st statement) hasAction(action string) bool {
	return slices.ContainsFunc(st.Action, func(pattern string) bool {
		_, name, ok := strings.Cut(strings.ToLower(pattern), ":") // sqs:SendMessage
		return pattern == "*" || ok && like(name, strings.ToLower(action))
	})
}

func (st statement) hasResource(arn string) bool {
	return len(st.Resource) == 0 || slices.ContainsFunc(st.Resource, func(p string) bool { return like(p, arn) })
}

// like reports whether a text is like a pattern, in which * is any text and ? any letter. Neither actions nor ARNs of
// queues have a slash, which path.Match treats apart.
func like(pattern, text string) bool {
	ok, err := path.Match(pattern, text)
	return ok && err == nil
}
