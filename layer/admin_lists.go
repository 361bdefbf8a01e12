package layer

import (
	"context"
	"iter"
)

// The lists as iterators. Each reads a page when the loop comes there, and begins anew when ranged over again. Each
// entry is true of a moment, the list is not.

// AllDeadLetters lists dead letters as DeadLetters does, page after page; o.Limit is the size of a page. A loop may end
// at any letter. An error ends the list, as the last pair, with no letter.
func (a Admin) AllDeadLetters(ctx context.Context, o DeadOptions) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for o := o; ; {
			page, err := a.DeadLetters(ctx, o)
			if !give(page.Letters, err, yield) || page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// AllArchived lists archived items as Archive does, page after page; o.Limit is the size of a page. A loop may end at
// any item. An error ends the list, as the last pair, with no item.
func (a Admin) AllArchived(ctx context.Context, o ArchiveOptions) iter.Seq2[ArchivedItem, error] {
	return func(yield func(ArchivedItem, error) bool) {
		for o := o; ; {
			page, err := a.Archive(ctx, o)
			if !give(page.Items, err, yield) || page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// AllGroups lists the groups with items as Groups does, page after page; o.Limit is the size of a page. A loop may end
// at any group. An error ends the list, as the last pair, with no group.
func (a Admin) AllGroups(ctx context.Context, o GroupsOptions) iter.Seq2[GroupInfo, error] {
	return func(yield func(GroupInfo, error) bool) {
		for o := o; ; {
			page, err := a.Groups(ctx, o)
			if !give(page.Groups, err, yield) || page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// itemsPage is how many items of a group AllItems reads at a time: 5 MB with the largest values.
const itemsPage = 50

// AllItems lists the items of a group from its head on, held or not, with their attempts, as Peek does. A loop may end
// at any item. An item which is enqueued while the loop runs is listed if the loop has not passed its place. An error
// ends the list, as the last pair, with no item: as Peek's, and ErrCorrupt. A template leaves the items that agree with
// it, as Peek's does.
func (a Admin) AllItems(ctx context.Context, group string, where ...Template) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		packed, err := a.q.whereGiven(where)
		if e := checkGroup(group); e != nil {
			err = e
		}
		if err != nil {
			give[Item](nil, wrap("items", err), yield)
			return
		}
		lane := laneName(group, packed)
		for after := (*ID)(nil); ; {
			items, err := a.q.peek(ctx, lane, after, itemsPage)
			if !give(items, wrap("items", err), yield) || len(items) == 0 {
				return
			}
			after = &items[len(items)-1].ID
		}
	}
}
