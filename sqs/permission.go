package sqs

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"fdbfifo/internal/strict"
)

// policy is a queue's Policy as AddPermission makes it. Other members that a program has set are kept.
type policy struct {
	Version   string     `json:"Version"`
	ID        string     `json:"Id,omitempty"`
	Statement statements `json:"Statement"`
}

// statements are those of a policy, which may have one without a list.
type statements []map[string]any

func (l *statements) UnmarshalJSON(b []byte) error {
	var one map[string]any
	if json.Unmarshal(b, &one) == nil && one != nil {
		*l = statements{one}
		return nil
	}
	return json.Unmarshal(b, (*[]map[string]any)(l))
}

// readPolicy reads the Policy of a queue, or makes an empty one.
func (s *Server) readPolicy(name string, r *record) (policy, error) {
	p := policy{Version: "2008-10-17", ID: s.arn(name) + "/SQSDefaultPolicy"}
	if text := r.Attributes[policyAttribute]; text != "" {
		if err := strict.UnmarshalKnown([]byte(text), &p); err != nil {
			return p, invalidPolicy(err) // of an earlier version
		}
	}
	return p, nil
}

// labelled is the place of the statement with a label; -1 = there is none.
func (p policy) labelled(label string) int {
	return slices.IndexFunc(p.Statement, func(s map[string]any) bool { return s["Sid"] == label })
}

// oneOrMany is how policies have lists.
func oneOrMany(list []string) any {
	if len(list) == 1 {
		return list[0]
	}
	return list
}

func (s *Server) addPermission(ctx context.Context, c *call, in *addPermissionRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	switch {
	case in.Label == "":
		return missing("Label")
	case len(in.AWSAccountIds) == 0:
		return missing("PrincipalId")
	case len(in.Actions) == 0:
		return missing("Actions")
	}
	var principals, actions []string
	for _, action := range in.Actions {
		if _, ok := operations[action]; !ok && action != "*" {
			return invalidValue("SQS:"+action, "ActionName",
				"Please refer to the appropriate WSDL for a list of valid actions. ")
		}
		if slices.Contains(ownerOnly, action) {
			return invalidValue("SQS:"+action, "ActionName",
				"Only the queue owner is allowed to invoke this action.")
		}
		actions = append(actions, "SQS:"+action)
	}
	for _, account := range in.AWSAccountIds {
		if !isAccount(account) {
			return invalidValue(account, "PrincipalId", "Unable to verify.")
		}
		principals = append(principals, "arn:aws:iam::"+account+":root")
	}
	added, tried := map[string]any{
		"Sid": in.Label, "Effect": "Allow", "Principal": map[string]any{"AWS": oneOrMany(principals)},
		"Action": oneOrMany(actions), "Resource": s.arn(q.Name()),
	}, false
	return s.change(ctx, q, func(r *record) error {
		p, err := s.readPolicy(q.Name(), r)
		if err != nil {
			return err
		}
		if i := p.labelled(in.Label); i >= 0 {
			if tried && bytes.Equal(marshal(p.Statement[i]), marshal(added)) {
				return nil // an earlier attempt has added it
			}
			return invalidValue(in.Label, "Label", "Already exists.")
		}
		tried = true
		p.Statement = append(p.Statement, added)
		r.Attributes[policyAttribute] = string(marshal(p))
		return nil
	})
}

func (s *Server) removePermission(ctx context.Context, c *call, in *removePermissionRequest) error {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return err
	}
	defer q.release()
	if in.Label == "" {
		return missing("Label")
	}
	tried := false
	return s.change(ctx, q, func(r *record) error {
		p, err := s.readPolicy(q.Name(), r)
		if err != nil {
			return err
		}
		i := p.labelled(in.Label)
		if i < 0 && tried {
			return nil // an earlier attempt has removed it
		}
		if i < 0 {
			return invalidValue(in.Label, "Label", "can't find label.")
		}
		tried = true
		if p.Statement = slices.Delete(p.Statement, i, i+1); len(p.Statement) == 0 {
			delete(r.Attributes, policyAttribute)
			return nil
		}
		r.Attributes[policyAttribute] = string(marshal(p))
		return nil
	})
}
