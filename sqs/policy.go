package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/internal/strict"
)

// ownerOnly are the operations that no policy can allow to other accounts, as on AWS.
var ownerOnly = []string{
	"AddPermission", "CancelMessageMoveTask", "CreateQueue", "DeleteQueue", "ListMessageMoveTasks", "ListQueues",
	"ListQueueTags", "RemovePermission", "SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue",
}

// foreign reports whether the client is of another account than the queues.
func (s *Server) foreign(c *call) bool { return c.account != s.options.Account }

// mayCall refuses a client of another account an operation that only the queues' own account may do.
func (s *Server) mayCall(c *call) error {
	if s.foreign(c) && slices.Contains(ownerOnly, c.action) {
		return s.notAuthorized(c, "*", "the operation is not open to other accounts")
	}
	return nil
}

// mayUse refuses a client of another account if the queue's policy does not allow the action. It refuses a queue that
// does not exist in the same way, so a client cannot find out which queues exist. The time of the answer must not show
// it either. Therefore mayUse reads the record each time, and the server opens a queue only for a client that may use
// it.
func (s *Server) mayUse(ctx context.Context, c *call, name string) error {
	r, _, err := s.look(ctx, name)
	if err != nil && !errors.Is(err, errUnreadable) {
		return err
	}
	// An account that may do an action one by one may also do the batch.
	action := strings.TrimSuffix(c.action, "Batch")
	if r.live() && allows(r.Attributes[policyAttribute], c.account, action, s.arn(name)) {
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

// statement is a statement of a policy. The server does not evaluate the parts that are raw; see strange.
type statement struct {
	Sid          json.RawMessage
	Effect       string
	Principal    *principal
	NotPrincipal json.RawMessage
	Action       oneOrMore
	NotAction    json.RawMessage
	Resource     oneOrMore // none = the queue of the policy
	NotResource  json.RawMessage
	Condition    json.RawMessage
}

const effectAllow, effectDeny = "Allow", "Deny"

// principal is the subject of a statement. No client of this server is one of AWS's services.
type principal struct{ AWS, Service oneOrMore }

func (p *principal) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		if text != "*" {
			return fmt.Errorf(`the Principal %q is neither "*" nor an object`, text)
		}
		p.AWS = oneOrMore{text}
		return nil
	}
	type plain principal
	return strict.UnmarshalKnown(b, (*plain)(p))
}

// readStatements splits a policy into its statements.
func readStatements(text string) (all []json.RawMessage, err error) {
	var p struct {
		Version, Statement json.RawMessage
		ID                 json.RawMessage `json:"Id"`
	}
	if err := strict.UnmarshalKnown([]byte(text), &p); err != nil || p.Statement == nil {
		return nil, err
	}
	if json.Unmarshal(p.Statement, &all) != nil {
		all = []json.RawMessage{p.Statement} // a policy may have one statement without a list
	}
	return all, nil
}

// readStatement reads a statement. The error names the part that the server does not understand. After an error the
// caller must use at most the effect.
func readStatement(raw json.RawMessage) (statement, error) {
	var st statement
	if err := strict.UnmarshalKnown(raw, &st); err != nil {
		return st, err
	}
	return st, st.check()
}

// check returns an error if the server does not understand the statement, and so cannot know which requests it is
// about. AWS accepts any text as a Resource. If the text is no ARN, an Allow with it allows nothing.
func (st statement) check() error {
	if st.Effect != effectAllow && st.Effect != effectDeny {
		return fmt.Errorf("the Effect %q is neither Allow nor Deny", st.Effect)
	}
	if len(st.Action) == 0 && st.NotAction == nil {
		return errors.New("a statement has no Action")
	}
	for _, pattern := range st.Action {
		if !isAction(pattern) {
			return fmt.Errorf("the Action %q is none of SQS, such as sqs:SendMessage", pattern)
		}
	}
	if p := st.Principal; st.NotPrincipal == nil && (p == nil || len(p.AWS)+len(p.Service) == 0) {
		return errors.New("a statement has no Principal")
	}
	if st.Principal != nil {
		for _, who := range st.Principal.AWS {
			if account, _ := accountOf(who); who != "*" && account == "" {
				return fmt.Errorf("the Principal %q is neither an account nor an ARN of one", who)
			}
		}
	}
	if st.Resource != nil && len(st.Resource) == 0 {
		return errors.New("a statement has an empty list of Resource")
	}
	for _, pattern := range st.Resource {
		if st.Effect == effectDeny && !isResource(pattern) {
			return fmt.Errorf("the Resource %q of a Deny is no ARN", pattern)
		}
	}
	return nil
}

// checkPolicy returns an error if the server does not understand a policy. A part that the server understands and does
// not evaluate is no error; see strange.
func checkPolicy(text string) error {
	all, err := readStatements(text)
	if err != nil {
		return err
	}
	for _, raw := range all {
		if _, err := readStatement(raw); err != nil {
			return err
		}
	}
	return nil
}

func invalidPolicy(err error) error {
	return fail(schemas.InvalidAttributeValue, "Invalid value for the parameter %s. Reason: %s.", policyAttribute, err)
}

// allows reports whether a policy allows an action on a queue to an account that does not own it. A statement must
// allow the action, and none may deny it. An earlier version may have stored a policy that this server does not
// understand, or that is strange. Such an Allow allows no account, and such a Deny denies every account.
func allows(text, account, action, arn string) bool {
	all, err := readStatements(text)
	if err != nil {
		return false
	}
	allowed := false
	for _, raw := range all {
		st, err := readStatement(raw)
		understood := err == nil && !st.strange()
		if st.Effect != effectAllow {
			if !understood || st.concerns(account, action, arn) {
				return false
			}
			continue
		}
		allowed = allowed || understood && st.concerns(account, action, arn)
	}
	return allowed
}

// strange reports whether the statement has parts that the server does not evaluate.
func (st statement) strange() bool {
	return st.NotPrincipal != nil || st.NotAction != nil || st.NotResource != nil || st.Condition != nil
}

// concerns reports whether the statement is about an action of an account on a queue.
func (st statement) concerns(account, action, arn string) bool {
	return st.isFor(account) && st.hasAction(action) && st.hasResource(arn)
}

// isFor reports whether the statement is about an account. A statement that names only a user or a role of the account
// is about the whole account if it denies. If it allows, it is about no account.
func (st statement) isFor(account string) bool {
	return slices.ContainsFunc(st.Principal.AWS, func(who string) bool {
		of, whole := accountOf(who)
		return who == "*" || of == account && (whole || st.Effect == effectDeny)
	})
}

// accountOf is the account of a principal, and whether the principal is the whole account, such as 111122223333 or
// arn:aws:iam::111122223333:root. "" = the server does not understand the principal.
func accountOf(who string) (account string, whole bool) {
	if isAccount(who) {
		return who, true
	}
	parts := strings.SplitN(who, ":", 6)
	if len(parts) < 6 || parts[0] != "arn" || parts[2] != "iam" && parts[2] != "sts" || !isAccount(parts[4]) ||
		parts[5] == "" || strings.ContainsAny(parts[5], "*?") {
		return "", false
	}
	return parts[4], parts[2] == "iam" && parts[5] == "root"
}

// hasAction reports whether the statement has an action. A statement that denies a batch also denies the single action.
func (st statement) hasAction(action string) bool {
	return slices.ContainsFunc(st.Action, func(pattern string) bool {
		return isLikeAction(pattern, action) || st.Effect == effectDeny && isLikeAction(pattern, action+"Batch")
	})
}

// isAction reports whether a pattern matches any action of SQS.
func isAction(pattern string) bool {
	for action := range operations {
		if isLikeAction(pattern, action) {
			return true
		}
	}
	return false
}

// isLikeAction compares without regard to case: SQS:* is sqs:*.
func isLikeAction(pattern, action string) bool {
	return like(strings.ToLower(pattern), "sqs:"+strings.ToLower(action))
}

func (st statement) hasResource(arn string) bool {
	return len(st.Resource) == 0 || slices.ContainsFunc(st.Resource, func(p string) bool { return like(p, arn) })
}

// isResource reports whether a pattern can match the ARN of a queue. Examples: *, arn:aws:sqs:*,
// arn:aws:sqs:us-east-1:111122223333:jobs. The server does not know the value of a variable, ${…}.
func isResource(pattern string) bool {
	parts := strings.Split(pattern, ":")
	whole := len(parts) == 6 || len(parts) < 6 && strings.Contains(pattern, "*")
	return pattern == "*" || parts[0] == "arn" && whole && !strings.Contains(pattern, "${")
}

// like reports whether a text matches a pattern, in which * is any text and ? any byte.
func like(pattern, text string) bool {
	p, t := 0, 0
	star, from := -1, 0 // the last * of the pattern, and where in the text the part behind the * begins
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p, t = p+1, t+1
		case star >= 0: // the * takes one byte more
			from++
			p, t = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
